package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/varve-io/varve/sdk"
)

// Appends a record and follows the stream from its start.
func Example() {
	ctx := context.Background()
	client, err := sdk.Dial("localhost:4400")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()

	producer := client.Producer("logs/app")
	position, err := producer.Append(ctx, sdk.Record{Value: []byte("hello")})
	if err != nil {
		log.Fatal(err, sdk.AppliedOf(err)) // "no": not stored; "unknown": perhaps
	}
	fmt.Println("stored at", position.Offset)

	for record, err := range client.Read(ctx, "logs/app", sdk.FromStart(), sdk.Follow()) {
		if errors.Is(err, sdk.ErrStreamDeleted) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(record.Offset, string(record.Value))
	}
}
