package bucket

import (
	"errors"
	"path"
	"strings"
	"testing"

	"github.com/varve-io/varve/meta"
)

// A key that passes is its own clean path, and each of its beginnings is a prefix.
func FuzzCheckKey(f *testing.F) {
	for _, s := range []string{"a", "streams/ns/a~b/0000000000000001/x.seg", "", ".", "../a", "a//b", "a/", "a/..", "ä", "a\x00", "__XLDIR__", strings.Repeat("a/", 401)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, key string) {
		err := CheckKey(key)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || !errors.Is(err, meta.ErrInvalid) {
				t.Fatalf("%v is not ErrInvalid", err)
			}
			return
		}
		if path.Clean("/"+key) != "/"+key || strings.HasPrefix(key, ".") || len(key) > MaxKey {
			t.Fatalf("%q passed", key)
		}
		for i := range len(key) + 1 {
			if err := CheckPrefix(key[:i]); err != nil {
				t.Fatalf("the beginning %q of key %q: %v", key[:i], key, err)
			}
		}
	})
}

func TestParseLocation(t *testing.T) {
	for raw, want := range map[string]Location{
		"s3://varve":                         {Scheme: "s3", Bucket: "varve"},
		"s3://varve/":                        {Scheme: "s3", Bucket: "varve"},
		"s3://varve/a/b?region=eu-central-1": {Scheme: "s3", Bucket: "varve", Prefix: "a/b", Region: "eu-central-1"},
		"s3://varve/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1&path-style=true": {Scheme: "s3", Bucket: "varve", Prefix: "prefix", Endpoint: "http://127.0.0.1:9000", Region: "us-east-1", PathStyle: true},
		"s3://varve?endpoint=https://s3.example.com/":                                       {Scheme: "s3", Bucket: "varve", Endpoint: "https://s3.example.com", PathStyle: true},
		"s3://varve?endpoint=https://s3.example.com&path-style=false":                       {Scheme: "s3", Bucket: "varve", Endpoint: "https://s3.example.com"},
		"dir:///var/lib/varve": {Scheme: "dir", Path: "/var/lib/varve"},
		"dir:data/../bucket":   {Scheme: "dir", Path: "bucket"},
		"dir:///a%20b":         {Scheme: "dir", Path: "/a b"},
	} {
		got, err := ParseLocation(raw)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v", raw, got, err)
		}
	}
	for _, raw := range []string{"", "varve", "gs://varve", "s3:varve", "s3://", "s3://V", "s3://ab", "s3://1.2.3.4", "s3://varve/../x", "s3://varve//x", "s3://varve?endpoint=ftp://x",
		"s3://varve?endpoint=http://u:p@x", "s3://varve?endpoint=http://x/y", "s3://varve?color=red", "s3://varve?region=a&region=b", "s3://varve?region=US%20", "s3://varve?path-style=maybe",
		"s3://key:hunter2@varve/x", "s3://varve#x", "dir://host/x", "dir:", "dir://", "dir:///x?y=z", "s3://varve:80/x", "s3://varve/%zz", "s3://varve?a=%zz"} {
		_, err := ParseLocation(raw)
		if !errors.Is(err, ErrInvalid) {
			t.Errorf("%q: %v", raw, err)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("a password in %v", err)
		}
	}
}

// A location that can be read is written in a form that reads back as the same.
func FuzzParseLocation(f *testing.F) {
	for _, s := range []string{"s3://varve/p?endpoint=http://127.0.0.1:9000&region=us-east-1&path-style=true", "dir:///x", "dir:x", "dir:a%2fb", "dir:./a:b", "s3://a..b", "s3://k:p@varve", "dir:////x", "dir:%2e", "dir:a?b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		l, err := ParseLocation(raw)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("%v is not ErrInvalid", err)
			}
			return
		}
		again, err := ParseLocation(l.String())
		if err != nil || again != l {
			t.Fatalf("%q -> %+v -> %q -> %+v, %v", raw, l, l.String(), again, err)
		}
	})
}

func TestDeleteError(t *testing.T) {
	err := error(&DeleteError{Failed: []KeyError{{"a", &Error{Op: "delete", Bucket: "b", Key: "a", Kind: ErrDenied}}, {"c", &Error{Kind: ErrUnavailable}}}})
	if !errors.Is(err, ErrDenied) || !errors.Is(err, meta.ErrUnavailable) || errors.Is(err, ErrNotExist) {
		t.Error("the reasons can't be told")
	}
	if got := Remaining(err); len(got) != 2 || got[1] != "c" || Remaining(nil) != nil {
		t.Errorf("remaining %q", got)
	}
}
