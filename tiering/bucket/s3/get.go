package s3

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/varve-io/varve/tiering/bucket"
)

// Get returns exactly the bytes asked for, by one ranged request an attempt.
func (b *Bucket) Get(ctx context.Context, key string, offset, length int64) ([]byte, error) {
	if err := b.check("get", key); err != nil {
		return nil, err
	}
	if offset < 0 || length < 0 || offset+length < 0 {
		return nil, b.fail("get", key, &verdict{kind: bucket.ErrInvalid, err: fmt.Errorf("offset %d, length %d", offset, length)})
	}
	if length == 0 {
		return []byte{}, nil
	}
	var p []byte
	err := b.reads.do(ctx, "GetObject", b.timeout(length), func(ctx context.Context) error {
		out, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: b.name(), Key: b.key(key),
			Range: aws.String(fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))})
		if err != nil {
			return pastEnd(err, offset, length)
		}
		defer out.Body.Close()
		if err := ranged(out.ContentRange, offset, length); err != nil {
			return err
		}
		if p == nil {
			p = make([]byte, length)
		}
		return fill(out.Body, p)
	})
	if err != nil {
		return nil, b.fail("get", key, err)
	}
	return p, nil
}

func pastEnd(err error, offset, length int64) error {
	v := *classify(err)
	if v.kind == bucket.ErrCorrupt {
		v.err = fmt.Errorf("it ends before byte %d; asked for %d from there on: %w", offset, length, v.err)
	}
	return &v
}

// ranged checks that the answer is the range that was asked for:
// "bytes first-last/size".
func ranged(header *string, offset, length int64) error {
	var first, last, size int64
	rest, ok := strings.CutPrefix(aws.ToString(header), "bytes ")
	span, total, ok2 := strings.Cut(rest, "/")
	from, to, ok3 := strings.Cut(span, "-")
	var errs [3]error
	first, errs[0] = strconv.ParseInt(from, 10, 64)
	last, errs[1] = strconv.ParseInt(to, 10, 64)
	size, errs[2] = strconv.ParseInt(total, 10, 64)
	switch {
	case !ok || !ok2 || !ok3 || errors.Join(errs[:]...) != nil || first != offset || last > offset+length-1:
		return broken(false, fmt.Sprintf("asked for %d bytes from %d on, the answer has the range %q", length, offset, aws.ToString(header)))
	case size < offset+length:
		return &verdict{kind: bucket.ErrCorrupt, err: fmt.Errorf("it has %d bytes; asked for %d from %d on", size, length, offset)}
	case last != offset+length-1:
		return broken(false, "the answer is a part of the range that was asked for")
	}
	return nil
}

// fill reads exactly len(p) bytes. A body that ends early is no end of an object.
func fill(body io.Reader, p []byte) error {
	if n, err := io.ReadFull(body, p); err != nil {
		return &verdict{kind: bucket.ErrUnavailable, err: fmt.Errorf("the answer ended after %d of %d bytes: %w", n, len(p), err),
			advice: adviceStore, retry: true, sick: !errors.Is(err, context.Canceled), own: errors.Is(err, context.Canceled)}
	}
	return nil
}

// Load returns a whole object and checks it. One that does not match is asked for
// once more.
func (b *Bucket) Load(ctx context.Context, key string, limit int64) ([]byte, bucket.Info, error) {
	if err := b.check("load", key); err != nil {
		return nil, bucket.Info{}, err
	}
	var p []byte
	var info bucket.Info
	mismatches := 0
	err := b.reads.do(ctx, "GetObject", b.timeout(max(0, limit)), func(ctx context.Context) error {
		out, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: b.name(), Key: b.key(key), ChecksumMode: types.ChecksumModeEnabled})
		if err != nil {
			return err
		}
		defer out.Body.Close()
		if out.ContentLength == nil {
			return broken(false, "the answer has no length")
		}
		size := *out.ContentLength
		if size > limit {
			return &verdict{kind: bucket.ErrTooLarge, err: fmt.Errorf("it has %d bytes, the limit is %d", size, limit)}
		}
		if p = make([]byte, size); size > 0 {
			if err := fill(out.Body, p); err != nil {
				return err
			}
		}
		info = bucket.Info{Key: key, Size: size}
		info.CRC32C, info.Checked = storedCRC(out.ChecksumCRC32C, out.ChecksumType, out.Metadata)
		if crc := bucket.Checksum(p); info.Checked && crc != info.CRC32C {
			mismatches++
			return &verdict{kind: bucket.ErrCorrupt, err: fmt.Errorf("its CRC32C is %08x, stored was %08x", crc, info.CRC32C), retry: mismatches < 2}
		}
		return nil
	})
	if err != nil {
		return nil, bucket.Info{}, b.fail("load", key, err)
	}
	return p, info, nil
}

// Head describes an object. The 404 and 403 of HEAD have no body, so they can't tell a
// missing object from a missing bucket, nor a refusal from a wrong clock: a GET asks
// again.
func (b *Bucket) Head(ctx context.Context, key string) (bucket.Info, error) {
	if err := b.check("head", key); err != nil {
		return bucket.Info{}, err
	}
	var info bucket.Info
	err := b.reads.do(ctx, "HeadObject", b.timeout(0), func(ctx context.Context) error {
		out, err := b.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: b.name(), Key: b.key(key), ChecksumMode: types.ChecksumModeEnabled})
		if err != nil {
			if v := classify(err); v.kind != bucket.ErrNotExist && v.kind != bucket.ErrDenied {
				return v
			}
			return b.reason(ctx, key)
		}
		if out.ContentLength == nil {
			return broken(false, "the answer has no length")
		}
		info = bucket.Info{Key: key, Size: *out.ContentLength}
		info.CRC32C, info.Checked = storedCRC(out.ChecksumCRC32C, out.ChecksumType, out.Metadata)
		return nil
	})
	if err != nil {
		return bucket.Info{}, b.fail("head", key, err)
	}
	return info, nil
}

// reason asks why an object can't be described.
func (b *Bucket) reason(ctx context.Context, key string) error {
	out, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: b.name(), Key: b.key(key), Range: aws.String("bytes=0-0")})
	if err == nil {
		out.Body.Close()
		return &verdict{kind: bucket.ErrUnavailable, err: errors.New("the object appeared between two requests"), retry: true}
	}
	v := classify(err)
	if v.kind == bucket.ErrCorrupt { // an empty object has no first byte
		return &verdict{kind: bucket.ErrUnavailable, err: errors.New("the object appeared between two requests"), retry: true}
	}
	return v
}
