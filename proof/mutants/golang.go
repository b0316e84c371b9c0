package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
)

// parseGo returns the mutations of a Go file.
func parseGo(file, text string) ([]site, error) {
	set := token.NewFileSet()
	tree, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	g := &goParser{file: file, at: func(p token.Pos) int { return set.Position(p).Offset }}
	for _, d := range tree.Decls {
		if gen, ok := d.(*ast.GenDecl); ok && gen.Tok != token.VAR {
			continue
		}
		ast.Walk(goVisitor{g: g}, d)
	}
	return g.sites, nil
}

type goParser struct {
	file  string
	at    func(token.Pos) int
	sites []site
}

func (g *goParser) add(op string, n ast.Node, how shape, parts ...ast.Node) {
	s := site{file: g.file, op: op, from: g.at(n.Pos()), to: g.at(n.End()), shape: how}
	for _, part := range parts {
		s.parts = append(s.parts, [2]int{g.at(part.Pos()), g.at(part.End())})
	}
	g.sites = append(g.sites, s)
}

// goVisitor walks the tree. Comparisons inside a condition are not mutated as a whole.
type goVisitor struct {
	g      *goParser
	inside bool
}

func (v goVisitor) Visit(n ast.Node) ast.Visitor {
	outside := goVisitor{g: v.g}
	within := goVisitor{g: v.g, inside: true}
	switch n := n.(type) {
	case *ast.GenDecl:
		if n.Tok != token.VAR {
			return nil
		}
	case *ast.IfStmt:
		v.condition(n.Cond, true)
		walk(outside, n.Init, n.Body, n.Else)
		return nil
	case *ast.ForStmt:
		v.condition(n.Cond, false) // an infinite loop needs no test
		walk(outside, n.Init, n.Post, n.Body)
		return nil
	case *ast.SwitchStmt:
		walk(outside, n.Init, n.Tag)
		for _, c := range n.Body.List {
			clause := c.(*ast.CaseClause)
			if n.Tag == nil {
				for _, e := range clause.List {
					v.condition(e, true)
				}
			} // otherwise the values are not conditions
			v.statements(clause.Body)
		}
		return nil
	case *ast.TypeSwitchStmt:
		walk(outside, n.Init)
		for _, c := range n.Body.List {
			v.statements(c.(*ast.CaseClause).Body)
		}
		return nil
	case *ast.CommClause:
		v.statements(n.Body)
		return nil
	case *ast.BlockStmt:
		v.statements(n.List)
		return nil
	case *ast.ParenExpr:
		return v
	case *ast.UnaryExpr:
		if n.Op != token.NOT {
			return outside
		}
		if !v.inside {
			v.whole(n, true)
		}
		return within
	case *ast.BinaryExpr:
		switch n.Op {
		case token.LAND, token.LOR:
			if !v.inside {
				v.whole(n, true)
			}
			v.g.add("operand", n.X, operand(n.Op))
			v.g.add("operand", n.Y, operand(n.Op))
			return within
		case token.EQL, token.NEQ, token.LSS, token.LEQ, token.GTR, token.GEQ:
			if !v.inside {
				v.whole(n, true)
			}
			if n.Op != token.EQL && n.Op != token.NEQ {
				v.g.add("border", n, shapeBorder, n.X, n.Y)
			}
		}
		return outside
	case *ast.CallExpr:
		if name, ok := n.Fun.(*ast.Ident); ok && (name.Name == "min" || name.Name == "max") && len(n.Args) == 2 {
			v.g.add("operand", n, shapePick, n.Args[0], n.Args[1])
			v.g.add("operand", n, shapePick+1, n.Args[0], n.Args[1])
		}
		return outside
	}
	return outside
}

func operand(op token.Token) shape {
	if op == token.LAND {
		return shapeTrue
	}
	return shapeFalse
}

// whole adds the mutations of a condition as a whole.
func (v goVisitor) whole(n ast.Node, always bool) {
	v.g.add("never", n, shapeFalse)
	if always {
		v.g.add("always", n, shapeTrue)
	}
}

func (v goVisitor) condition(e ast.Expr, always bool) {
	if e == nil {
		return
	}
	v.whole(e, always)
	ast.Walk(goVisitor{g: v.g, inside: true}, e)
}

// statements adds a removal for each removable statement, and walks through all of them.
func (v goVisitor) statements(list []ast.Stmt) {
	for _, s := range list {
		if removable(s) {
			v.g.add(removed, s, shapeStatement)
		}
		ast.Walk(goVisitor{g: v.g}, s)
	}
}

func walk(v ast.Visitor, nodes ...ast.Node) {
	for _, n := range nodes {
		switch x := n.(type) {
		case nil:
			continue
		case *ast.BlockStmt:
			if x == nil {
				continue
			}
		}
		ast.Walk(v, n)
	}
}

// removable reports whether a statement has an effect other than logging: it writes, wakes or calls something.
func removable(s ast.Stmt) bool {
	switch s := s.(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		return ok && effective(call)
	case *ast.DeferStmt:
		return effective(s.Call)
	case *ast.GoStmt, *ast.SendStmt:
		return true
	case *ast.IncDecStmt:
		return field(s.X)
	case *ast.AssignStmt:
		if s.Tok == token.DEFINE {
			return false
		}
		blank := true
		for _, left := range s.Lhs {
			if field(left) {
				return true
			}
			name, ok := left.(*ast.Ident)
			blank = blank && ok && name.Name == "_"
		}
		if blank && len(s.Rhs) == 1 {
			_, ok := s.Rhs[0].(*ast.CallExpr)
			return ok
		}
	}
	return false
}

func field(e ast.Expr) bool {
	switch e.(type) {
	case *ast.SelectorExpr, *ast.IndexExpr, *ast.StarExpr:
		return true
	}
	return false
}

var ineffective = []string{"panic", "Helper", "lock", "unlock", "RLock", "RUnlock", "Debug", "Info", "Warn", "Error", "DebugContext", "InfoContext", "WarnContext", "ErrorContext", "Log", "LogAttrs"}

// effective reports whether a call does more than log, lock or unlock a mutex.
func effective(call *ast.CallExpr) bool {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return !slices.Contains(ineffective, f.Name)
	case *ast.SelectorExpr:
		if f.Sel.Name == "Lock" || f.Sel.Name == "Unlock" {
			of := fmt.Sprint(f.X)
			if inner, ok := f.X.(*ast.SelectorExpr); ok {
				of = inner.Sel.Name
			}
			return !strings.Contains(strings.ToLower(of), "mu")
		}
		return !slices.Contains(ineffective, f.Sel.Name)
	}
	return true
}
