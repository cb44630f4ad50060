package buckettest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/varve-io/varve/tiering/bucket"
)

// keys: bad ones are refused by every call, and nothing happens.
func (s *suite) keys(ctx context.Context, b bucket.Bucket) error {
	for _, key := range []string{"", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a/..", ".varve/x", "a b", "a\x00b", "a\nb", "ä", "a\\b", "a:b", "a?b", "a#b", "a%2fb", "a/b__XLDIR__", "__XLDIR__/a",
		strings.Repeat("a", 256), strings.Repeat("a/", 400) + "bc"} {
		_, putErr := b.Put(ctx, key, bucket.Bytes([]byte("x")), bucket.PutOptions{})
		_, getErr := b.Get(ctx, key, 0, 1)
		_, _, loadErr := b.Load(ctx, key, 1)
		_, headErr := b.Head(ctx, key)
		deleteErr := b.Delete(ctx, []string{key})
		for i, err := range []error{putErr, getErr, loadErr, headErr, deleteErr} {
			if err := want(err, bucket.ErrInvalid, "call %d with key %.50q", i, key); err != nil {
				return err
			}
		}
		if left := bucket.Remaining(deleteErr); len(left) != 1 || left[0] != key {
			return fmt.Errorf("delete of %.50q names %.100q", key, left)
		}
	}
	for _, prefix := range []string{"/", "/a", "../", "a/../b", "a//"} {
		if _, err := list(ctx, b, prefix, ""); !errors.Is(err, bucket.ErrInvalid) {
			return fmt.Errorf("list %q: %v", prefix, err)
		}
	}
	keys, err := list(ctx, b, "", "")
	if err != nil {
		return err
	}
	return same("after refused calls", keys, nil)
}

// hostileNames are legal, and mean something to some store or file system.
func (s *suite) hostileNames(ctx context.Context, b bucket.Bucket) error {
	keys := []string{
		"h/...", "h/..a", "h/.a/x", "h/a..", "h/a.", "h/a+b", "h/a=b", "h/~/x", "h/-", "h/--all", "h/@", "h/!", "h/,",
		"h/con", "h/NUL.txt", "h/part.1", "h/.usage-cache.bin", "h/.minio.sys/x", "h/xl.meta/x", "h/y/xl.meta", "h/index.html",
		"h/" + strings.Repeat("n", 255), "h/" + strings.Repeat("m/", 300) + "x", "H/a", "h/A", "h/UPPER", "h/upper",
		strings.Repeat("o", 200) + "/" + strings.Repeat("p", 200) + "/" + strings.Repeat("q", 200) + "/" + strings.Repeat("r", 197),
	}
	if err := putAll(ctx, b, keys); err != nil {
		return err
	}
	for _, key := range keys {
		if err := s.holds(ctx, b, key, []byte(key)); err != nil {
			return err
		}
	}
	sort.Strings(keys)
	got, err := list(ctx, b, "", "")
	if err != nil {
		return err
	}
	if err := same("hostile names", got, keys); err != nil {
		return err
	}
	return b.Delete(ctx, keys)
}

// folders: no key is the folder of another.
func (s *suite) folders(ctx context.Context, b bucket.Bucket) error {
	if s.opts.FoldersUnchecked {
		return nil
	}
	if err := putAll(ctx, b, []string{"f/a", "f/b/c/d"}); err != nil {
		return err
	}
	for _, key := range []string{"f/a/x", "f/a/x/y", "f", "f/b", "f/b/c"} {
		for _, opts := range []bucket.PutOptions{{}, {IfAbsent: true}} {
			_, err := b.Put(ctx, key, bucket.Bytes([]byte("x")), opts)
			if err := want(err, bucket.ErrInvalid, "put %s", key); err != nil {
				return err
			}
		}
	}
	// Deleting what is no object harms none.
	if err := b.Delete(ctx, []string{"f/a/x", "f", "f/b/c"}); err != nil {
		return err
	}
	keys, err := list(ctx, b, "f", "")
	if err != nil {
		return err
	}
	return same("folders", keys, []string{"f/a", "f/b/c/d"})
}

// listOrder: byte order of whole keys, from any prefix and after any key.
func (s *suite) listOrder(ctx context.Context, b bucket.Bucket) error {
	keys := []string{"a!", "a-b", "a.b", "a/b/c", "a/b-/d", "a/b.seg", "a/bb", "a0", "a~b", "aa/x", "ab", "b/1", "b/10", "b/2", "A/z", "c/d/e/f", "zz"}
	if err := putAll(ctx, b, keys); err != nil {
		return err
	}
	sort.Strings(keys)
	for _, prefix := range []string{"", "a", "a/", "a/b", "a/b/", "a/b/c", "a/b/c/", "b/1", "c/d/e/", "x", "c/d/x/y", "zz"} {
		for _, after := range []string{"", "A", "a", "a-b", "a/", "a/b", "a/b/", "a/b/c", "a/b0", "a~", "b", "b/1", "b/10/x", "zz", "zzz", "~"} {
			var wanted []string
			for _, k := range keys {
				if strings.HasPrefix(k, prefix) && k > after {
					wanted = append(wanted, k)
				}
			}
			got, err := list(ctx, b, prefix, after)
			if err != nil {
				return err
			}
			if err := same(fmt.Sprintf("list %q after %q", prefix, after), got, wanted); err != nil {
				return err
			}
		}
	}
	for info, err := range b.List(ctx, "", "") {
		if err != nil {
			return err
		}
		if info.Size != int64(len(info.Key)) {
			return fmt.Errorf("%s is listed with %d bytes", info.Key, info.Size)
		}
	}
	return nil
}

// many is more keys than a page holds, in order.
func many(folder string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s/%02d/%05d.seg", folder, i/500, i)
	}
	return keys
}

// listPages: every key once over several pages, while some are deleted.
func (s *suite) listPages(ctx context.Context, b bucket.Bucket) error {
	keys := many("pages", 1150)
	if err := putAll(ctx, b, keys); err != nil {
		return err
	}
	got, err := list(ctx, b, "pages/", "")
	if err != nil {
		return err
	}
	if err := same("pages", got, keys); err != nil {
		return err
	}
	if got, err = list(ctx, b, "", keys[1049]); err != nil {
		return err
	}
	if err := same("pages after", got, keys[1050:]); err != nil {
		return err
	}
	got = nil
	for info, err := range b.List(ctx, "pages/", "") {
		if err != nil {
			return err
		}
		if got = append(got, info.Key); len(got) == 3 {
			if err := b.Delete(ctx, append(slices.Clone(keys[:2]), keys[1050:1100]...)); err != nil {
				return err
			}
		}
	}
	// Those deleted meanwhile may be seen or not; no other may be missing.
	got = slices.DeleteFunc(got, func(k string) bool { return slices.Contains(keys[1050:1100], k) })
	return same("pages with deletes", got, append(slices.Clone(keys[:1050]), keys[1100:]...))
}

// listStops: a caller may leave a listing at any time, and start it again.
func (s *suite) listStops(ctx context.Context, b bucket.Bucket) error {
	if err := putAll(ctx, b, []string{"s/1", "s/2", "s/3"}); err != nil {
		return err
	}
	seq := b.List(ctx, "s/", "")
	for range 2 {
		for info, err := range seq {
			if err != nil || info.Key != "s/1" {
				return fmt.Errorf("got %q, %w", info.Key, err)
			}
			break
		}
	}
	return nil
}

func (s *suite) delete(ctx context.Context, b bucket.Bucket) error {
	if err := putAll(ctx, b, []string{"d/a", "d/b", "d/e/f"}); err != nil {
		return err
	}
	for _, keys := range [][]string{nil, {}, {"d/none"}, {"nowhere/none"}, {"d/a"}, {"d/a", "d/a"}, {"d/e/f", "d/a", "d/none"}} {
		if err := b.Delete(ctx, keys); err != nil {
			return fmt.Errorf("delete %q: %w", keys, err)
		}
	}
	if err := errors.Join(absent(ctx, b, "d/a"), absent(ctx, b, "d/e/f")); err != nil {
		return err
	}
	// A bad key is named, and the good ones are gone all the same.
	err := b.Delete(ctx, []string{"d//", "d/b"})
	if left := bucket.Remaining(err); len(left) != 1 || left[0] != "d//" {
		return fmt.Errorf("delete names %q: %w", left, err)
	}
	got, err := list(ctx, b, "", "")
	if err != nil {
		return err
	}
	return same("after deletes", got, nil)
}

// deleteMany: more than one request's worth.
func (s *suite) deleteMany(ctx context.Context, b bucket.Bucket) error {
	keys := many("many", 2501)
	if err := putAll(ctx, b, append(append([]string{"stays/x"}, keys[:50]...), keys[1000:2020]...)); err != nil {
		return err
	}
	if err := b.Delete(ctx, keys); err != nil { // some are not there
		return err
	}
	got, err := list(ctx, b, "", "")
	if err != nil {
		return err
	}
	return same("after many deletes", got, []string{"stays/x"})
}
