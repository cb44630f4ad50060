// Package report shows people what a run does and what came of it: progress
// while it runs, and a table of figures at the end.
//
// A table has one line a row: a name, a figure, what the figure has to reach,
// and "ok" or "short". The same form is used wherever figures are judged.
//
// On a terminal progress is a bar; in a pipe it is a plain line now and then.
// A Progress is safe for concurrent use; a Table is not.
package report
