package sim

// Shrink takes away from p what it can while fails reports true, and returns what is left, and how many
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
