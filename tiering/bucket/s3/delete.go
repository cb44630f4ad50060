package s3

import (
	"context"
	"errors"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	"golang.org/x/sync/errgroup"

	"github.com/varve-io/varve/tiering/bucket"
)

// Delete removes keys, 1,000 a request. A store that does not know that request gets
// one for each key.
func (b *Bucket) Delete(ctx context.Context, keys []string) error {
	var failed []bucket.KeyError
	var good []string
	for _, key := range keys {
		if err := b.check("delete", key); err != nil {
			failed = append(failed, bucket.KeyError{Key: key, Err: err})
			continue
		}
		good = append(good, key)
	}
	slices.Sort(good)
	for batch := range slices.Chunk(slices.Compact(good), maxBatch) {
		failed = append(failed, b.deleteBatch(ctx, batch)...)
	}
	if failed != nil {
		return &bucket.DeleteError{Failed: failed}
	}
	return nil
}

// deleting is one batch on its way.
type deleting struct {
	b       *Bucket
	pending map[string]*verdict // full key -> why it is not deleted yet; nil when not tried
	final   map[string]*verdict // refused for good
	batched bool
}

func (b *Bucket) deleteBatch(ctx context.Context, keys []string) []bucket.KeyError {
	d := &deleting{b: b, pending: make(map[string]*verdict), final: make(map[string]*verdict), batched: true}
	for _, key := range keys {
		d.pending[b.prefix+key] = nil
	}
	err := b.deletes.do(ctx, "DeleteObjects", b.timeout(0), d.attempt)
	var failed []bucket.KeyError
	for _, key := range keys {
		v, left := d.pending[b.prefix+key]
		if f, ok := d.final[b.prefix+key]; ok {
			v, left = f, true
		}
		if !left {
			continue
		}
		// What has no answer of its own failed with the request.
		if v == nil {
			v = &verdict{kind: bucket.ErrUnavailable, err: errors.New("not tried")}
			if err != nil {
				v = classify(err)
			}
		}
		failed = append(failed, bucket.KeyError{Key: key, Err: b.fail("delete", key, v)})
	}
	return failed
}

func (d *deleting) attempt(ctx context.Context) error {
	if len(d.pending) == 0 {
		return nil
	}
	if !d.batched {
		return d.singly(ctx)
	}
	in := &s3.DeleteObjectsInput{Bucket: d.b.name(), Delete: &types.Delete{}}
	for key := range d.pending {
		in.Delete.Objects = append(in.Delete.Objects, types.ObjectIdentifier{Key: aws.String(key)})
	}
	out, err := d.b.client.DeleteObjects(ctx, in)
	if err != nil && unsupported(err) {
		d.batched = false
		return d.singly(ctx)
	}
	if err != nil {
		return err
	}
	for _, done := range out.Deleted {
		delete(d.pending, aws.ToString(done.Key))
	}
	for _, e := range out.Errors {
		key := aws.ToString(e.Key)
		if _, asked := d.pending[key]; asked {
			d.refused(key, answered(&smithy.GenericAPIError{Code: aws.ToString(e.Code), Message: aws.ToString(e.Message)}, aws.ToString(e.Code)))
		}
	}
	return d.rest()
}

// refused takes the store's error for one key.
func (d *deleting) refused(key string, v *verdict) {
	switch {
	case v.kind == bucket.ErrNotExist:
		delete(d.pending, key)
	case v.retry:
		d.pending[key] = v
	default:
		delete(d.pending, key)
		d.final[key] = v
	}
}

// rest says whether the request has to be sent again, with what is left.
func (d *deleting) rest() error {
	for _, v := range d.pending {
		if v != nil {
			again := *v
			again.sick = false // the store answers; some keys are in trouble
			return &again
		}
	}
	if len(d.pending) > 0 {
		return broken(false, "the answer to a delete leaves keys out")
	}
	return nil
}

// singly deletes each key by a request of its own.
func (d *deleting) singly(ctx context.Context) error {
	keys := make([]string, 0, len(d.pending))
	for key := range d.pending {
		keys = append(keys, key)
	}
	errs := make([]error, len(keys))
	var group errgroup.Group
	group.SetLimit(8)
	for i, key := range keys {
		group.Go(func() error {
			_, errs[i] = d.b.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: d.b.name(), Key: aws.String(key)})
			return nil
		})
	}
	_ = group.Wait() // none of them returns an error
	for i, key := range keys {
		if errs[i] == nil {
			delete(d.pending, key)
			continue
		}
		d.refused(key, classify(errs[i]))
	}
	return d.rest()
}
