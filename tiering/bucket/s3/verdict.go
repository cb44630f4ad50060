package s3

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/varve-io/varve/tiering/bucket"
)

// verdict is what is known about a request that did not simply succeed.
type verdict struct {
	kind   error  // one of bucket's
	err    error  // the cause
	advice string // what to do next
	retry  bool   // another try may go well
	sent   bool   // it may have been applied, or be applied later
	sick   bool   // the store, or the way to it, is in trouble
	renew  bool   // the credentials should be looked up again
	own    bool   // it says nothing about the store: the caller's context or body
}

func (v *verdict) Error() string {
	if v.err == nil {
		return v.kind.Error()
	}
	return v.err.Error()
}

func (v *verdict) Unwrap() []error {
	if v.err == nil {
		return []error{v.kind}
	}
	return []error{v.kind, v.err}
}

// broken is an answer that is complete as HTTP goes and can't be right.
func broken(sent bool, format string) *verdict {
	return &verdict{kind: bucket.ErrUnavailable, err: errors.New(format), retry: true, sent: sent, sick: true,
		advice: "the store, or a proxy before it, breaks the protocol"}
}

const (
	adviceBucket = "make the bucket or correct its name in the URL"
	adviceDenied = "check the credentials and the policy: s3:GetObject, PutObject, DeleteObject, ListBucket, AbortMultipartUpload, ListBucketMultipartUploads"
	adviceClock  = "set this machine's clock by NTP"
	adviceStore  = "look at the store and the network to it"
)

// classify turns an error of the client into a verdict.
func classify(err error) *verdict {
	if v, ok := errors.AsType[*verdict](err); ok {
		return v
	}
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		return answered(err, api.ErrorCode())
	}
	if resp, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		// An answer came, and could not be read to its end.
		if resp.HTTPStatusCode() >= 300 {
			return answered(err, "")
		}
		return &verdict{kind: bucket.ErrUnavailable, err: err, advice: adviceStore, retry: true, sent: true, sick: true}
	}
	v := &verdict{kind: bucket.ErrUnavailable, err: err, advice: adviceStore, retry: true, sent: true, sick: true}
	var send *smithyhttp.RequestSendError
	switch {
	case errors.Is(err, context.Canceled):
		v.sick, v.own = false, true
	case dialFailed(err):
		v.sent = false
	case strings.Contains(err.Error(), "get identity"), strings.Contains(err.Error(), "retrieve credentials"):
		v.kind, v.advice, v.sent, v.retry, v.renew = bucket.ErrDenied, "give credentials by AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or a profile", false, false, true
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &send), isNet(err):
		// Sent, at least in part.
	default:
		v.advice = "the request or its answer could not be understood"
	}
	return v
}

func isNet(err error) bool {
	_, ok := errors.AsType[net.Error](err)
	return ok
}

// dialFailed says that no connection was made, so nothing was sent.
func dialFailed(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return true
	}
	_, ok := errors.AsType[*net.DNSError](err)
	return ok
}

func status(err error) int {
	if resp, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return resp.HTTPStatusCode()
	}
	return 0
}

// answered judges an error that the store sent; code may be empty.
func answered(err error, code string) *verdict {
	st := status(err)
	v := &verdict{kind: bucket.ErrUnavailable, err: err}
	is := func(codes ...string) bool { return slices.Contains(codes, code) }
	switch {
	case is("NoSuchBucket"):
		v.advice, v.sick = adviceBucket, true
	case is("NoSuchUpload"):
		v.kind = errNoUpload
	case is("NoSuchKey", "NotFound"), st == http.StatusNotFound && code == "":
		v.kind = bucket.ErrNotExist
	case is("PreconditionFailed"), st == http.StatusPreconditionFailed:
		v.kind = bucket.ErrExists
	case is("ConditionalRequestConflict", "OperationAborted"), st == http.StatusConflict:
		v.retry, v.sent, v.advice = true, true, "other writers are at this key"
	case is("InvalidRange"), st == http.StatusRequestedRangeNotSatisfiable:
		v.kind = bucket.ErrCorrupt
	case is("BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch", "InvalidDigest"):
		v.kind, v.retry, v.advice = bucket.ErrCorrupt, true, "the bytes changed on their way; look at the network and this machine's memory"
	case is("RequestTimeTooSkewed"):
		v.kind, v.retry, v.sick, v.advice = bucket.ErrClock, true, true, adviceClock
	case is("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"):
		v.kind, v.retry, v.sick, v.renew, v.advice = bucket.ErrDenied, true, true, true, "the session has expired; renew the credentials"
	case is("XMinioStorageFull", "QuotaExceeded", "XMinioAdminBucketQuotaExceeded", "InsufficientCapacity"), st == http.StatusInsufficientStorage:
		v.kind, v.retry, v.sick, v.advice = bucket.ErrFull, true, true, "free space in the store or raise its quota"
	case st == http.StatusUnauthorized, st == http.StatusForbidden, is("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch"):
		v.kind, v.sick, v.renew, v.advice = bucket.ErrDenied, true, true, adviceDenied
	case is("EntityTooLarge"):
		v.kind = bucket.ErrTooLarge
	case is("XMinioParentIsObject", "XMinioObjectExistsAsDirectory"):
		v.kind, v.advice = bucket.ErrInvalid, "no key may be the folder of another"
	case is("SlowDown", "TooManyRequests", "ThrottlingException"), st == http.StatusTooManyRequests:
		v.retry, v.sick, v.advice = true, true, "the store asks to slow down"
	case is("IncompleteBody", "RequestTimeout"), st == http.StatusRequestTimeout:
		v.retry, v.sick, v.advice = true, true, adviceStore
	case st >= 500 && st != http.StatusNotImplemented, is("InternalError", "ServiceUnavailable"):
		v.retry, v.sent, v.sick, v.advice = true, true, true, adviceStore
	default:
		v.sick, v.advice = true, "the store does not take this request; check that it speaks S3 and the endpoint, region and path-style of the URL"
	}
	return v
}

// errNoUpload says that a multipart upload isn't there: aborted, or completed.
var errNoUpload = errors.New("no such multipart upload")

// unsupported says that the store does not know a kind of request.
func unsupported(err error) bool {
	api, ok := errors.AsType[smithy.APIError](err)
	if !ok {
		return false
	}
	st := status(err)
	return st == http.StatusNotImplemented || st == http.StatusMethodNotAllowed || st == http.StatusBadRequest &&
		slices.Contains([]string{"MissingContentMD5", "InvalidRequest", "InvalidArgument", "NotImplemented", "MalformedXML", "UnsupportedArgument"}, api.ErrorCode())
}

// fail makes the error that a caller sees.
func (b *Bucket) fail(op, key string, err error) error {
	v := classify(err)
	return &bucket.Error{Op: op, Bucket: b.Location(), Key: key, Kind: v.kind, Err: v.err, Advice: v.advice}
}
