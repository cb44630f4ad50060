package s3

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/middleware"

	"github.com/varve-io/varve/tiering/bucket"
)

// Bucket is a [bucket.Bucket] on S3. Make it with [Open].
type Bucket struct {
	loc    bucket.Location
	opts   Options
	client *s3.Client
	creds  *aws.CredentialsCache
	http   *awshttp.BuildableClient
	prefix string // "" or with a slash at its end

	reads, writes, lists, deletes *class
	buffers                       chan []byte // part buffers; nil ones are not allocated yet
}

var _ bucket.Bucket = (*Bucket)(nil)

// Open makes a client for the bucket at a URL:
//
//	s3://bucket/prefix?endpoint=http://127.0.0.1:9000&region=us-east-1&path-style=true
//
// What the URL leaves out comes from AWS's environment variables and profile. Open
// sends no request; the first call shows whether the bucket can be reached.
func Open(ctx context.Context, rawURL string, opts Options) (*Bucket, error) {
	loc, err := bucket.ParseLocation(rawURL)
	if err != nil {
		return nil, err
	}
	if loc.Scheme != "s3" {
		return nil, invalid("%s is not a bucket on S3; write s3://bucket/prefix", loc)
	}
	opts = opts.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	b := &Bucket{loc: loc, opts: opts}
	if loc.Prefix != "" {
		b.prefix = loc.Prefix + "/"
	}
	if err := b.connect(ctx); err != nil {
		return nil, &bucket.Error{Op: "open", Bucket: loc.String(), Kind: bucket.ErrInvalid, Err: err,
			Advice: "check the AWS_ environment variables and the profile"}
	}
	b.reads = newClass("read", opts.Reads, opts, b.renew)
	b.writes = newClass("write", opts.Writes, opts, b.renew)
	b.lists = newClass("list", opts.Lists, opts, b.renew)
	b.deletes = newClass("delete", opts.Deletes, opts, b.renew)
	b.buffers = make(chan []byte, opts.Buffers)
	for range opts.Buffers {
		b.buffers <- nil
	}
	return b, nil
}

func (b *Bucket) connect(ctx context.Context) error {
	// A plain http.Client would make LoadDefaultConfig fail where AWS_CA_BUNDLE is set.
	b.http = awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = 5 * time.Second }).
		WithTransportOptions(func(t *http.Transport) {
			t.MaxIdleConnsPerHost = 64
			t.DisableCompression = true
		})
	load := func(ctx context.Context) (aws.Config, error) {
		return config.LoadDefaultConfig(ctx, config.WithHTTPClient(b.http))
	}
	cfg, err := load(ctx)
	if err != nil {
		return err
	}
	b.creds = aws.NewCredentialsCache(b.provider(load))
	region := b.loc.Region
	if region == "" {
		region = cfg.Region
	}
	if region == "" {
		region = "us-east-1"
	}
	b.client = s3.NewFromConfig(cfg, func(o *s3.Options) {
		o.Credentials = b.creds
		o.Region = region
		if b.loc.Endpoint != "" {
			o.BaseEndpoint = aws.String(b.loc.Endpoint)
		}
		// AWS_ENDPOINT_URL may name an endpoint as well; other stores want the path.
		o.UsePathStyle = b.loc.PathStyle || b.loc.Endpoint == "" && o.BaseEndpoint != nil
		o.Retryer = aws.NopRetryer{}
		o.RequestChecksumCalculation = aws.RequestChecksumCalculationWhenRequired
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.DisableLogOutputChecksumValidationSkipped = true
	})
	return nil
}

// provider looks credentials up anew each time the cache asks.
func (b *Bucket) provider(load func(context.Context) (aws.Config, error)) aws.CredentialsProvider {
	if b.opts.AccessKey != "" {
		return credentials.NewStaticCredentialsProvider(b.opts.AccessKey, b.opts.SecretKey, b.opts.SessionToken)
	}
	return aws.CredentialsProviderFunc(func(ctx context.Context) (aws.Credentials, error) {
		cfg, err := load(ctx)
		if err != nil {
			return aws.Credentials{}, err
		}
		return cfg.Credentials.Retrieve(ctx)
	})
}

// renew makes the next request look its credentials up again.
func (b *Bucket) renew() { b.creds.Invalidate() }

// unsigned leaves the payload out of the signature: its checksum header is signed, and a
// SHA-256 of everything costs three times the CPU.
func unsigned(o *s3.Options) {
	o.APIOptions = append(o.APIOptions, func(stack *middleware.Stack) error {
		return v4.SwapComputePayloadSHA256ForUnsignedPayloadMiddleware(stack)
	})
}

// Location is the bucket's URL.
func (b *Bucket) Location() string { return b.loc.String() }

// Close closes idle connections.
func (b *Bucket) Close() error {
	b.http.GetTransport().CloseIdleConnections()
	return nil
}

func (b *Bucket) key(key string) *string { return aws.String(b.prefix + key) }

func (b *Bucket) name() *string { return aws.String(b.loc.Bucket) }

// timeout is the deadline of a request that moves n bytes.
func (b *Bucket) timeout(n int64) time.Duration {
	return b.opts.RequestTimeout + time.Duration(float64(n)/float64(b.opts.MinRate)*float64(time.Second))
}

// check refuses a bad key.
func (b *Bucket) check(op, key string) error {
	if err := bucket.CheckKey(key); err != nil {
		return &bucket.Error{Op: op, Bucket: b.Location(), Key: key, Kind: bucket.ErrInvalid, Err: err}
	}
	return nil
}

// relative is a full key below the bucket's prefix.
func (b *Bucket) relative(full string) (string, bool) { return strings.CutPrefix(full, b.prefix) }
