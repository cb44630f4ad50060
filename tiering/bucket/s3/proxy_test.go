package s3

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// step decides about one request: it says whether it dealt with it.
type step func(w http.ResponseWriter, r *http.Request, forward http.Handler) bool

// proxy stands before MinIO and follows a script.
type proxy struct {
	*httptest.Server
	forward http.Handler

	mu    sync.Mutex
	steps []step
	seen  []string // "METHOD name" of each request
}

func newProxy(t *testing.T) *proxy {
	t.Helper()
	target, err := url.Parse(server.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{forward: &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			r.Out.Host = r.In.Host // it is signed
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}}
	p.Server = httptest.NewServer(p)
	t.Cleanup(p.Close)
	return p
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.seen = append(p.seen, r.Method+" "+r.URL.RawQuery)
	steps := p.steps
	p.mu.Unlock()
	for _, s := range steps {
		if s(w, r, p.forward) {
			return
		}
	}
	p.forward.ServeHTTP(w, r)
}

func (p *proxy) script(steps ...step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps, p.seen = steps, nil
}

func (p *proxy) count(method string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, s := range p.seen {
		if strings.HasPrefix(s, method) {
			n++
		}
	}
	return n
}

// open opens a bucket through the proxy, with retries that don't take long.
func (p *proxy) open(t *testing.T) *Bucket {
	t.Helper()
	opts := testOptions()
	opts.MaxBackoff = 20 * time.Millisecond
	return p.openWith(t, within(opts, 30*time.Second))
}

// hasty opens the same bucket again, to give up soon.
func hasty(t *testing.T, b *Bucket) *Bucket {
	t.Helper()
	return openAt(t, b.Location(), within(b.opts, 200*time.Millisecond))
}

func within(opts Options, d time.Duration) Options {
	budget := Budget{For: d, PerSecond: 100}
	opts.Reads, opts.Writes, opts.Lists, opts.Deletes = budget, budget, budget, budget
	return opts
}

func (p *proxy) openWith(t *testing.T, opts Options) *Bucket {
	t.Helper()
	return openAt(t, fmt.Sprintf("s3://%s/p%d?endpoint=%s&region=us-east-1", testBucket, prefixN.Add(1), url.QueryEscape(p.URL)), opts)
}

func on(match func(*http.Request) bool, times int, do step) step {
	var mu sync.Mutex
	return func(w http.ResponseWriter, r *http.Request, forward http.Handler) bool {
		mu.Lock()
		hit := times != 0 && match(r)
		if hit {
			times--
		}
		mu.Unlock()
		return hit && do(w, r, forward)
	}
}

func method(m string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == m }
}

func query(m, name string) func(*http.Request) bool {
	return func(r *http.Request) bool { return r.Method == m && r.URL.Query().Has(name) }
}

// answer refuses a request, after reading it.
func answer(status int, code string) step {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		if code != "" {
			fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>scripted</Message></Error>", code)
		}
		return true
	}
}

// reply answers 200 with a body, without asking MinIO.
func reply(body string) step {
	return func(w http.ResponseWriter, r *http.Request, _ http.Handler) bool {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/xml")
		_, _ = io.WriteString(w, body)
		return true
	}
}

// lose passes a request on and drops the connection instead of the answer.
func lose(w http.ResponseWriter, r *http.Request, forward http.Handler) bool {
	forward.ServeHTTP(httptest.NewRecorder(), r)
	hangUp(w)
	return true
}

// hangUp resets the connection.
func hangUp(w http.ResponseWriter) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// swallow passes a request on and answers 200 with an empty body.
func swallow(w http.ResponseWriter, r *http.Request, forward http.Handler) bool {
	forward.ServeHTTP(httptest.NewRecorder(), r)
	w.WriteHeader(http.StatusOK)
	return true
}

// cut sends the right head and the first n bytes of the body only.
func cut(n int) step {
	return func(w http.ResponseWriter, r *http.Request, forward http.Handler) bool {
		rec := httptest.NewRecorder()
		forward.ServeHTTP(rec, r)
		for k, v := range rec.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes()[:min(n, rec.Body.Len())])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// flip changes one bit of the answer's body.
func flip(w http.ResponseWriter, r *http.Request, forward http.Handler) bool {
	rec := httptest.NewRecorder()
	forward.ServeHTTP(rec, r)
	for k, v := range rec.Header() {
		w.Header()[k] = v
	}
	w.WriteHeader(rec.Code)
	p := rec.Body.Bytes()
	p[len(p)/2] ^= 1
	_, _ = w.Write(p)
	return true
}
