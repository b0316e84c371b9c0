package sim

// Shrink makes p smaller while fails reports true. It returns the smallest failing plan, and how many
// plans were played.
func Shrink(p Plan, fails func(Plan) bool) (smallest Plan, played int) {
	const most = 400
	for {
		smaller := false
		for _, c := range p.Smaller() {
			if played == most {
				return p, played
			}
			played++
			if fails(c) {
				p, smaller = c, true
				break
			}
		}
		if !smaller {
			return p, played
		}
	}
}
