package s3

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/varve-io/varve/tiering/bucket"
)

// Names in an object's metadata.
const (
	metaNonce = "varve-put"    // which Put wrote it
	metaCRC   = "varve-crc32c" // 8 hex digits
)

// Put stores body; see the package documentation.
func (b *Bucket) Put(ctx context.Context, key string, body bucket.Body, opts bucket.PutOptions) (bucket.Info, error) {
	if err := b.check("put", key); err != nil {
		return bucket.Info{}, err
	}
	p := &put{b: b, key: key, opts: opts, nonce: rand.Text()}
	info, err := p.run(ctx, body)
	if err == nil {
		return info, nil
	}
	if source, ok := errors.AsType[*bodyError](err); ok && !p.maybe {
		return bucket.Info{}, fmt.Errorf("read the body of %q: %w", key, source.err)
	}
	v := classify(err)
	if p.maybe && !p.decided {
		return bucket.Info{}, &bucket.Error{Op: "put", Bucket: b.Location(), Key: key, Kind: bucket.ErrUnknown, Err: v,
			Advice: "it may be stored, now or later; put the same bytes again or give this key up"}
	}
	return bucket.Info{}, b.fail("put", key, v)
}

// put is one Put on its way.
type put struct {
	b     *Bucket
	key   string
	opts  bucket.PutOptions
	nonce string

	maybe   bool // a request that would store the object may have been applied
	decided bool // and yet it is known not to have been
}

// bodyError is an error of the caller's body.
type bodyError struct{ err error }

func (e *bodyError) Error() string { return "read the body: " + e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

func bodyFailed(err error) *verdict {
	return &verdict{kind: bucket.ErrUnavailable, err: &bodyError{err}, own: true}
}

func (p *put) run(ctx context.Context, body bucket.Body) (bucket.Info, error) {
	switch size := body.Size(); {
	case size < 0:
		return p.stream(ctx, body.Reader())
	case size > p.b.opts.PutLimit:
		return p.parts(ctx, &sections{body: body, part: p.partSize(size)})
	}
	crc, err := p.checksum(ctx, body)
	if err != nil {
		return bucket.Info{}, err
	}
	return p.one(ctx, body, crc)
}

// checksum is the announced one, or else that of a first pass over the body.
func (p *put) checksum(ctx context.Context, body bucket.Body) (uint32, error) {
	if p.opts.CRC32C != nil {
		return *p.opts.CRC32C, nil
	}
	crc, n, err := sum(ctx, body.Reader())
	if err == nil && n != body.Size() {
		err = short(n, body.Size())
	}
	return crc, err
}

// sum reads all of r.
func sum(ctx context.Context, r io.Reader) (crc uint32, n int64, err error) {
	buf := make([]byte, 64<<10)
	for {
		if err := ctx.Err(); err != nil {
			return 0, 0, &verdict{kind: bucket.ErrUnavailable, err: context.Cause(ctx), own: true}
		}
		m, err := r.Read(buf)
		crc, n = bucket.Update(crc, buf[:m]), n+int64(m)
		if err == io.EOF {
			return crc, n, nil
		}
		if err != nil {
			return 0, 0, bodyFailed(err)
		}
	}
}

func short(got, want int64) *verdict {
	return &verdict{kind: bucket.ErrCorrupt, err: fmt.Errorf("the body ended after %d of %d bytes", got, want), own: true}
}

// one stores the whole body in one request, tried as often as the budget allows.
func (p *put) one(ctx context.Context, body bucket.Body, crc uint32) (bucket.Info, error) {
	b, size := p.b, body.Size()
	var digests refusals
	err := b.writes.do(ctx, "PutObject", b.timeout(size), func(ctx context.Context) error {
		source := newSource(body, crc)
		in := &s3.PutObjectInput{Bucket: b.name(), Key: b.key(p.key), Body: source, ContentLength: aws.Int64(size),
			ChecksumCRC32C: encodeCRC(crc), Metadata: map[string]string{metaNonce: p.nonce, metaCRC: fmt.Sprintf("%08x", crc)}}
		if p.opts.IfAbsent {
			in.IfNoneMatch = aws.String("*")
		}
		_, err := b.client.PutObject(ctx, in, unsigned)
		if err == nil {
			return nil
		}
		if source.err != nil {
			return source.err
		}
		return p.judge(ctx, digests.limit(err))
	})
	if err != nil {
		return bucket.Info{}, err
	}
	return bucket.Info{Key: p.key, Size: size, CRC32C: crc, Checked: true}, nil
}

// judge takes the failure of a request that would store the object. A refused
// condition is the own success if an earlier try was applied without our knowing.
func (p *put) judge(ctx context.Context, err error) error {
	v := classify(err)
	if v.sent {
		p.maybe = true
		return v
	}
	if v.kind != bucket.ErrExists {
		return v
	}
	if !p.maybe {
		return v
	}
	return p.settle(ctx, v)
}

// settle reads back whose the object is: nil if this Put's, lost if another's.
func (p *put) settle(ctx context.Context, lost error) error {
	out, err := p.b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: p.b.name(), Key: p.b.key(p.key)})
	if err != nil {
		v := *classify(err)
		v.retry, v.sent = true, true
		return &v
	}
	if out.Metadata[metaNonce] == p.nonce {
		return nil
	}
	p.decided = true
	return lost
}

// refusals counts the times that a store found other bytes than were sent. Once may
// be the network; twice won't get better.
type refusals int

func (r *refusals) limit(err error) error {
	v := *classify(err)
	if v.kind == bucket.ErrCorrupt {
		*r++
		v.retry = v.retry && *r < 2
	}
	return &v
}

func encodeCRC(crc uint32) *string {
	return aws.String(base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc)))
}

// storedCRC is the checksum of a whole object, as the store keeps it or, failing
// that, the metadata.
func storedCRC(stored *string, kind types.ChecksumType, metadata map[string]string) (uint32, bool) {
	if stored != nil && kind != types.ChecksumTypeComposite {
		if raw, err := base64.StdEncoding.DecodeString(*stored); err == nil && len(raw) == 4 {
			return binary.BigEndian.Uint32(raw), true
		}
	}
	var crc uint32
	if text := metadata[metaCRC]; len(text) == 8 {
		if _, err := fmt.Sscanf(text, "%08x", &crc); err == nil {
			return crc, true
		}
	}
	return 0, false
}

// source is a request's body. It remembers why it failed, for the client's own
// errors do not tell, and holds back the end of bytes that are not those announced: such a
// request is never complete, so that no store takes it.
type source struct {
	r    *io.SectionReader
	size int64
	want uint32 // CRC32C of all
	err  *verdict

	at  int64 // bytes read in order since the start
	crc uint32
}

func newSource(body bucket.Body, crc uint32) *source {
	return &source{r: body.Section(0, body.Size()), size: body.Size(), want: crc}
}

func (s *source) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.crc, s.at = bucket.Update(s.crc, p[:n]), s.at+int64(n)
	switch {
	case err != nil && err != io.EOF:
		s.err = bodyFailed(err)
	case err == io.EOF && s.at < s.size:
		// The section has not ended, so the source below it has.
		s.err = short(s.at, s.size)
	case s.at == s.size && s.crc != s.want:
		s.err = mismatch(s.crc, s.want)
	default:
		return n, err
	}
	return 0, s.err
}

// Seek serves the client, which finds the size that way and goes back to the start.
func (s *source) Seek(offset int64, whence int) (int64, error) {
	at, err := s.r.Seek(offset, whence)
	if s.at = at; at == 0 {
		s.crc = 0
	}
	return at, err
}
