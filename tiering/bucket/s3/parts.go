package s3

import (
	"context"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"golang.org/x/sync/errgroup"

	"github.com/varve-io/varve/tiering/bucket"
)

// inFlight is how many parts of one upload are under way at once.
const inFlight = 2

// stream stores a body of unknown size: in one request if it ends within the first
// part.
func (p *put) stream(ctx context.Context, r io.Reader) (bucket.Info, error) {
	src := &streamed{b: p.b, r: r}
	first, err := src.next(ctx)
	if err == io.EOF {
		first, err = piece{body: bucket.Bytes(nil), done: func() {}}, nil
	}
	if err != nil {
		return bucket.Info{}, err
	}
	if !src.ended {
		return p.parts(ctx, &pushedBack{parter: src, first: &first})
	}
	defer first.done()
	if want := p.opts.CRC32C; want != nil && *want != first.crc {
		return bucket.Info{}, mismatch(first.crc, *want)
	}
	return p.one(ctx, first.body, first.crc)
}

func mismatch(got, want uint32) *verdict {
	return &verdict{kind: bucket.ErrCorrupt, err: fmt.Errorf("the body's CRC32C is %08x, not %08x", got, want), own: true}
}

// partSize is what cuts size bytes into no more parts than S3 takes.
func (p *put) partSize(size int64) int64 {
	return max(p.b.opts.PartSize, (size+maxParts-1)/maxParts)
}

// parts stores a body as an upload in parts, and aborts it if that fails.
func (p *put) parts(ctx context.Context, src parter) (bucket.Info, error) {
	up := &upload{put: p}
	if err := up.create(ctx); err != nil {
		src.close()
		return bucket.Info{}, err
	}
	err := up.send(ctx, src)
	if err == nil {
		if want := p.opts.CRC32C; want != nil && *want != up.crc {
			err = mismatch(up.crc, *want)
		}
	}
	if err == nil {
		err = up.complete(ctx)
	}
	if err != nil {
		up.abort(ctx)
		return bucket.Info{}, err
	}
	return bucket.Info{Key: p.key, Size: up.size, CRC32C: up.crc, Checked: up.checked}, nil
}

// upload is one upload in parts.
//
//	created -> parts sent -> completed
//	   \___________\______-> aborted
type upload struct {
	*put
	id      *string
	checked bool // the store keeps a checksum of the whole
	done    []*types.CompletedPart
	size    int64
	crc     uint32
}

func (u *upload) create(ctx context.Context) error {
	u.checked = true
	return u.b.writes.do(ctx, "CreateMultipartUpload", u.b.timeout(0), func(ctx context.Context) error {
		in := &s3.CreateMultipartUploadInput{Bucket: u.b.name(), Key: u.b.key(u.key), Metadata: map[string]string{metaNonce: u.nonce}}
		if u.checked {
			in.ChecksumAlgorithm, in.ChecksumType = types.ChecksumAlgorithmCrc32c, types.ChecksumTypeFullObject
		}
		out, err := u.b.client.CreateMultipartUpload(ctx, in)
		if err != nil {
			if u.checked && unsupported(err) {
				u.checked = false // an older store; the parts are checked still
				return &verdict{kind: bucket.ErrUnavailable, err: err, retry: true, own: true}
			}
			v := *classify(err)
			v.sent = false // an upload begun stores nothing
			return &v
		}
		if out.UploadId == nil || *out.UploadId == "" {
			return broken(false, "the answer names no upload")
		}
		u.id = out.UploadId
		return nil
	})
}

// send uploads all parts, inFlight at a time, in memory bounded by src.
func (u *upload) send(ctx context.Context, src parter) error {
	group, groupCtx := errgroup.WithContext(ctx)
	group.SetLimit(inFlight)
	var nextErr error
	for nextErr == nil {
		var p piece
		if p, nextErr = src.next(groupCtx); nextErr != nil {
			break
		}
		if len(u.done) == maxParts {
			p.done()
			nextErr = &verdict{kind: bucket.ErrTooLarge, err: fmt.Errorf("more than %d parts of %d bytes", maxParts, u.b.opts.PartSize), own: true}
			break
		}
		part := &types.CompletedPart{PartNumber: aws.Int32(int32(len(u.done) + 1)), ChecksumCRC32C: encodeCRC(p.crc)}
		u.done = append(u.done, part)
		u.size += p.body.Size()
		group.Go(func() error {
			defer p.done()
			return u.part(groupCtx, part, p)
		})
	}
	// A part that failed ended groupCtx, and is the cause of what next returned.
	if err := group.Wait(); err != nil {
		return err
	}
	if nextErr != io.EOF {
		return nextErr
	}
	u.crc = src.sum()
	return nil
}

func (u *upload) part(ctx context.Context, part *types.CompletedPart, p piece) error {
	size := p.body.Size()
	var digests refusals
	return u.b.writes.do(ctx, "UploadPart", u.b.timeout(size), func(ctx context.Context) error {
		source := newSource(p.body, p.crc)
		out, err := u.b.client.UploadPart(ctx, &s3.UploadPartInput{Bucket: u.b.name(), Key: u.b.key(u.key), UploadId: u.id,
			PartNumber: part.PartNumber, Body: source, ContentLength: aws.Int64(size), ChecksumCRC32C: part.ChecksumCRC32C}, unsigned)
		if err == nil {
			if out.ETag == nil {
				return broken(false, "the answer to a part has no ETag")
			}
			part.ETag = out.ETag
			return nil
		}
		if source.err != nil {
			return source.err
		}
		v := *classify(digests.limit(err))
		if v.sent = false; v.kind == errNoUpload {
			v.kind, v.advice = bucket.ErrUnavailable, "the store, or a sweep, has dropped the upload; put the object again"
		}
		return &v
	})
}

// complete makes the object of the parts. An upload that is gone after an attempt of
// unknown outcome may have been completed by it.
func (u *upload) complete(ctx context.Context) error {
	in := &s3.CompleteMultipartUploadInput{Bucket: u.b.name(), Key: u.b.key(u.key), UploadId: u.id, MultipartUpload: &types.CompletedMultipartUpload{}}
	for _, part := range u.done {
		p := *part
		if !u.checked {
			p.ChecksumCRC32C = nil
		}
		in.MultipartUpload.Parts = append(in.MultipartUpload.Parts, p)
	}
	if u.checked {
		in.ChecksumCRC32C, in.ChecksumType = encodeCRC(u.crc), types.ChecksumTypeFullObject
	}
	if u.opts.IfAbsent {
		in.IfNoneMatch = aws.String("*")
	}
	return u.b.writes.do(ctx, "CompleteMultipartUpload", u.b.timeout(u.size), func(ctx context.Context) error {
		out, err := u.b.client.CompleteMultipartUpload(ctx, in)
		if err == nil && (out.ETag == nil || *out.ETag == "") {
			err = broken(true, "the answer to the completion of an upload is empty")
		}
		if err == nil {
			return nil
		}
		if err = u.judge(ctx, err); err == nil {
			return nil
		}
		if v := classify(err); v.kind == errNoUpload {
			lost := &verdict{kind: bucket.ErrUnavailable, err: v.err, advice: "the store, or a sweep, has dropped the upload; put the object again"}
			if !u.maybe {
				return lost
			}
			return u.settle(ctx, lost)
		}
		return err
	})
}

// abort gives the parts up, on a deadline of its own: the context of the put may be
// what ended it. Where that fails too, Tidy finds the upload later.
func (u *upload) abort(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortIn)
	defer cancel()
	_ = u.b.abandon(ctx, u.b.key(u.key), u.id)
}
