# Needs Go, make and git; the rest is built or installed by the targets themselves.
.PHONY: run test check demo stack stack-down invariants bench soak clean

run:        # the service on this machine, with a short tour
	@go build -o bin/tour ./loadtest/tour && exec bin/tour

test:       # every test, against a real MinIO
	go run ./infra/testrun

check:      # format, vet, generated code, modules, the rules of the house
	go run ./infra/check

demo:       # the demonstration on real input
	go run ./loadtest/demo

stack:      # MinIO and a server on it, in the background
	go run ./infra/stack up

stack-down:
	go run ./infra/stack down

invariants: # what must always hold, and which tests prove it
	go run ./infra/invariants

bench:
	go test -run='^$$' -bench=. -benchmem ./...

soak:       # the long forms: fuzzing, and every test many times
	go run ./infra/soak

clean: stack-down
	rm -rf bin .stack varve-data
