// Command varve is the whole of Varve: the server, the admin tool and the
// everyday client.
package main

import (
	"os"

	"github.com/varve-io/varve/services/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
