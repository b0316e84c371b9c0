//go:build linux

package chaos_test

// draw writes pages that show the history around what was wrong.
func (s *scene) draw(p *past, found []wrong) {}
