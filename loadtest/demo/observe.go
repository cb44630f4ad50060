package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// objects lists the keys of a stream's segments and manifests, with a client
// that shares nothing with the server's.
func (s *Stage) objects(ctx context.Context, stream string) (map[string]bool, error) {
	client, err := s.store.Client()
	if err != nil {
		return nil, err
	}
	keys := map[string]bool{}
	name := strings.ReplaceAll(strings.TrimPrefix(stream, namespace+"/"), "/", "~")
	for _, folder := range []string{"streams", "manifests"} {
		under := fmt.Sprintf("%s/%s/%s/%s/", prefix, folder, namespace, name)
		for object := range client.ListObjects(ctx, bucket, minio.ListObjectsOptions{Prefix: under, Recursive: true}) {
			if object.Err != nil {
				return nil, fmt.Errorf("list %s: %w", under, object.Err)
			}
			keys[object.Key] = true
		}
	}
	return keys, nil
}

// counters are bytes that reads were given, by where they came from.
type counters map[string]float64

// counters asks the server's metrics.
func (s *Stage) counters(ctx context.Context) (counters, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask for metrics: %w", err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}
	all := counters{}
	for _, m := range families[readBytes].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == readSource {
				all[label.GetValue()] += m.GetCounter().GetValue()
			}
		}
	}
	return all, nil
}

// The server's counter of bytes given to reads.
const (
	readBytes  = "varve_read_bytes_total"
	readSource = "from"
	fromBucket = "bucket"
)

func (c counters) sub(before counters) counters {
	all := counters{}
	for source, n := range c {
		all[source] = n - before[source]
	}
	return all
}

// coldShare is the part that came from object storage, 0 when nothing was read.
func (c counters) coldShare() float64 {
	total := 0.0
	for _, n := range c {
		total += n
	}
	if total == 0 {
		return 0
	}
	return c[fromBucket] / total
}
