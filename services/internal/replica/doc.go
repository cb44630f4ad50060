// Package replica is the pure core of one shard replica.
package replica
