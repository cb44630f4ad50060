package bucket

import (
	"net/netip"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
)

// Location is a parsed URL of a bucket. Secrets never stand in it.
//
//	s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1&path-style=true
//	dir:///absolute/path
//	dir:relative/path
type Location struct {
	Scheme string // "s3" or "dir"

	// s3
	Bucket    string
	Prefix    string // below which all keys stand; no slash at either end; may be empty
	Endpoint  string // "" for AWS's own, or what AWS_ENDPOINT_URL_S3 says
	Region    string // "" for AWS_REGION or the profile's
	PathStyle bool   // the bucket in the path instead of in the host name; default true with an endpoint

	// dir
	Path string
}

// ParseLocation reads a bucket's URL. The error says which part is wrong and
// what is expected; it never repeats a password.
func ParseLocation(raw string) (Location, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return Location{}, invalid("the bucket URL can't be read; write s3://bucket/prefix or dir:///path")
	}
	if u.User != nil {
		return Location{}, invalid("the bucket URL holds a user or password; give credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile instead")
	}
	if u.Fragment != "" || strings.Contains(raw, "#") {
		return Location{}, invalid("the bucket URL has a fragment (#); write %%23 or leave it out")
	}
	switch u.Scheme {
	case "s3":
		return parseS3(u)
	case "dir":
		return parseDir(u)
	case "":
		return Location{}, invalid("the bucket URL has no scheme; write s3://bucket/prefix or dir:///path")
	}
	return Location{}, invalid("the bucket URL has the scheme %q; s3 and dir are known", u.Scheme)
}

func parseDir(u *url.URL) (Location, error) {
	if u.RawQuery != "" {
		return Location{}, invalid("a dir: URL takes no options")
	}
	if u.Host != "" {
		return Location{}, invalid("dir://%s names a host; write dir:///path (three slashes) or dir:path", u.Host)
	}
	path := u.Path
	if u.Opaque != "" {
		p, err := url.PathUnescape(u.Opaque)
		if err != nil {
			return Location{}, invalid("the path of the dir: URL has a bad escape")
		}
		path = p
	}
	if path == "" || strings.ContainsRune(path, 0) {
		return Location{}, invalid("the dir: URL has no usable path; write dir:///path")
	}
	return Location{Scheme: "dir", Path: filepath.Clean(path)}, nil
}

func parseS3(u *url.URL) (Location, error) {
	loc := Location{Scheme: "s3", Bucket: u.Host, Prefix: strings.TrimSuffix(strings.TrimPrefix(u.Path, "/"), "/")}
	if u.Opaque != "" {
		return Location{}, invalid("the bucket URL lacks slashes; write s3://bucket/prefix")
	}
	if err := checkBucketName(loc.Bucket); err != nil {
		return Location{}, err
	}
	if loc.Prefix != "" {
		if err := checkPath("bucket URL's prefix", loc.Prefix, MaxPrefix, false); err != nil {
			return Location{}, err
		}
	}
	query, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return Location{}, invalid("the options of the bucket URL can't be read: a bad escape or a semicolon")
	}
	style := ""
	for name, values := range query {
		if len(values) != 1 {
			return Location{}, invalid("the bucket URL's option %q is given %d times", name, len(values))
		}
		switch name {
		case "endpoint":
			loc.Endpoint = strings.TrimRight(values[0], "/")
		case "region":
			loc.Region = values[0]
		case "path-style":
			style = values[0]
		default:
			return Location{}, invalid("the bucket URL has the unknown option %q; endpoint, region and path-style are known", name)
		}
	}
	if err := checkEndpoint(loc.Endpoint); err != nil {
		return Location{}, err
	}
	for i := range len(loc.Region) {
		if c := loc.Region[i]; !('a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-') {
			return Location{}, invalid("the bucket URL's region %q is not like us-east-1", loc.Region)
		}
	}
	loc.PathStyle = loc.Endpoint != ""
	if style != "" {
		if loc.PathStyle, err = strconv.ParseBool(style); err != nil {
			return Location{}, invalid("the bucket URL's option path-style is %q; write true or false", style)
		}
	}
	return loc, nil
}

// checkBucketName follows the naming rules of S3: 3 to 63 of a-z 0-9 . -,
// starting and ending with a letter or digit, not like an IP address.
func checkBucketName(name string) error {
	bad := len(name) < 3 || len(name) > 63 || strings.Contains(name, "..")
	for i := 0; i < len(name) && !bad; i++ {
		c := name[i]
		alnum := 'a' <= c && c <= 'z' || '0' <= c && c <= '9'
		inner := i > 0 && i < len(name)-1
		bad = !alnum && !(inner && (c == '-' || c == '.'))
	}
	if _, err := netip.ParseAddr(name); bad || err == nil {
		return invalid("%q is not the name of a bucket: 3 to 63 of a-z, 0-9, dot and hyphen", name)
	}
	return nil
}

func checkEndpoint(endpoint string) error {
	if endpoint == "" {
		return nil
	}
	u, err := url.Parse(endpoint)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil ||
		u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.ForceQuery || strings.Contains(endpoint, "#") {
		return invalid("the bucket URL's endpoint is not like http://127.0.0.1:9000: scheme and host only, without a path or password")
	}
	return nil
}

// String is the URL again, in one normal form; ParseLocation reads it back.
func (l Location) String() string {
	if l.Scheme == "dir" {
		if filepath.IsAbs(l.Path) {
			return (&url.URL{Scheme: "dir", Path: l.Path, OmitHost: false}).String()
		}
		return "dir:" + (&url.URL{Path: l.Path}).EscapedPath()
	}
	query := url.Values{}
	if l.Endpoint != "" {
		query.Set("endpoint", l.Endpoint)
	}
	if l.Region != "" {
		query.Set("region", l.Region)
	}
	if l.PathStyle != (l.Endpoint != "") {
		query.Set("path-style", strconv.FormatBool(l.PathStyle))
	}
	u := url.URL{Scheme: "s3", Host: l.Bucket, RawQuery: query.Encode()}
	if l.Prefix != "" {
		u.Path = "/" + l.Prefix
	}
	return u.String()
}
