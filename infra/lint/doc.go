// Package lint holds the house's rules about its own source as tests: which
// room may import which, which room alone may import a heavy library, that
// every package says what it owns, that no file grows past its size, that
// nothing is skipped or left marked for later, and that nothing stands at the
// top of the tree but what belongs there.
//
// The rules are data (rooms_test.go); each rule is a function of its own with a
// table test that shows it refusing a wrong case. A room that does not exist
// yet is no error; a package that belongs to no room is.
package lint
