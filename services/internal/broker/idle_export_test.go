package broker

import "time"

// Rest does what the upkeep does for shards that nobody used for a while.
func (b *Broker) Rest() {
	b.rest()
	b.rest()
	for range 2 {
		b.routes.mu.Lock()
		b.routes.turned = time.Time{}
		b.routes.mu.Unlock()
		b.routes.age(b.opts.Now())
	}
}
