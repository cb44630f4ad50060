package s3

import (
	"context"
	"errors"
	"iter"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/varve-io/varve/tiering/bucket"
)

// List yields keys page by page, and holds one page. A store that repeats itself,
// goes backwards or never ends is found out.
func (b *Bucket) List(ctx context.Context, prefix, after string) iter.Seq2[bucket.Info, error] {
	return func(yield func(bucket.Info, error) bool) {
		if err := bucket.CheckPrefix(prefix); err != nil {
			yield(bucket.Info{}, &bucket.Error{Op: "list", Bucket: b.Location(), Key: prefix, Kind: bucket.ErrInvalid, Err: err})
			return
		}
		l := &listing{b: b, prefix: b.prefix + prefix}
		if after != "" {
			l.after = b.prefix + after
		}
		for !l.ended {
			page, err := l.page(ctx)
			if err != nil {
				yield(bucket.Info{}, b.fail("list", prefix, err))
				return
			}
			for _, info := range page {
				if !yield(info, nil) {
					return
				}
			}
		}
	}
}

type listing struct {
	b      *Bucket
	prefix string // full
	after  string // full: the last key seen, or where to start; "" for none
	token  *string
	empty  int // pages without a key, in a row
	ended  bool
}

var errListing = errors.New("the store's listing repeats itself or goes backwards")

func (l *listing) page(ctx context.Context) ([]bucket.Info, error) {
	b := l.b
	// Encoded, so that a stranger's key that XML can't hold doesn't spoil the listing.
	in := &s3.ListObjectsV2Input{Bucket: b.name(), Prefix: aws.String(l.prefix), ContinuationToken: l.token, EncodingType: types.EncodingTypeUrl}
	if l.token == nil && l.after != "" {
		in.StartAfter = aws.String(l.after)
	}
	var out *s3.ListObjectsV2Output
	err := b.lists.do(ctx, "ListObjectsV2", b.timeout(0), func(ctx context.Context) (err error) {
		out, err = b.client.ListObjectsV2(ctx, in)
		if err != nil {
			return err
		}
		// An empty body would read as an empty bucket.
		if out.Name == nil && out.KeyCount == nil && out.IsTruncated == nil {
			return broken(false, "the answer to a listing is empty")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return l.take(out)
}

func (l *listing) take(out *s3.ListObjectsV2Output) ([]bucket.Info, error) {
	infos := make([]bucket.Info, 0, len(out.Contents))
	for _, o := range out.Contents {
		full := aws.ToString(o.Key)
		if out.EncodingType == types.EncodingTypeUrl {
			var err error
			if full, err = url.QueryUnescape(full); err != nil {
				return nil, l.broken()
			}
		}
		if full <= l.after && l.after != "" || !strings.HasPrefix(full, l.prefix) || o.Size == nil {
			return nil, l.broken()
		}
		l.after = full
		// A folder's own marker, which consoles make, has no name below the prefix.
		if key, ok := l.b.relative(full); ok && key != "" {
			infos = append(infos, bucket.Info{Key: key, Size: *o.Size})
		}
	}
	if l.empty++; len(out.Contents) > 0 {
		l.empty = 0
	}
	if !aws.ToBool(out.IsTruncated) {
		l.ended = true
		return infos, nil
	}
	next := aws.ToString(out.NextContinuationToken)
	if next == "" || l.token != nil && next == *l.token || l.empty > empties {
		return nil, l.broken()
	}
	l.token = &next
	return infos, nil
}

func (l *listing) broken() *verdict {
	return &verdict{kind: bucket.ErrUnavailable, err: errListing, advice: "don't rely on this listing; use a store that pages as S3 does"}
}

// Tidy aborts uploads in parts that began more than age ago, by the store's clock.
// MinIO knows only those begun since it started, and drops old ones itself.
func (b *Bucket) Tidy(ctx context.Context, age time.Duration) (int, error) {
	begun := time.Now().Add(-age)
	n := 0
	var key, id *string
	for {
		var out *s3.ListMultipartUploadsOutput
		err := b.lists.do(ctx, "ListMultipartUploads", b.timeout(0), func(ctx context.Context) (err error) {
			out, err = b.client.ListMultipartUploads(ctx, &s3.ListMultipartUploadsInput{Bucket: b.name(), KeyMarker: key, UploadIdMarker: id})
			return err
		})
		if err != nil {
			return n, b.fail("tidy", "", err)
		}
		for _, u := range out.Uploads {
			if !strings.HasPrefix(aws.ToString(u.Key), b.prefix) || u.UploadId == nil || u.Initiated == nil || u.Initiated.After(begun) {
				continue
			}
			if err := b.abandon(ctx, u.Key, u.UploadId); err != nil {
				return n, b.fail("tidy", aws.ToString(u.Key), err)
			}
			n++
		}
		if !aws.ToBool(out.IsTruncated) {
			return n, nil
		}
		if aws.ToString(out.NextKeyMarker) == aws.ToString(key) && aws.ToString(out.NextUploadIdMarker) == aws.ToString(id) {
			return n, b.fail("tidy", "", &verdict{kind: bucket.ErrUnavailable, err: errListing})
		}
		key, id = out.NextKeyMarker, out.NextUploadIdMarker
	}
}

// abandon aborts an upload; one that is gone is fine.
func (b *Bucket) abandon(ctx context.Context, key, id *string) error {
	return b.deletes.do(ctx, "AbortMultipartUpload", b.timeout(0), func(ctx context.Context) error {
		_, err := b.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{Bucket: b.name(), Key: key, UploadId: id})
		if err != nil && classify(err).kind == errNoUpload {
			return nil
		}
		return err
	})
}
