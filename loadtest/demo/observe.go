package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/minio/minio-go/v7"
	model "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	common "github.com/prometheus/common/model"
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

// manifested is how many of a stream's records its newest manifest holds, as the
// bucket says it: the end of the last segment, each of which is there in full.
func (s *Stage) manifested(ctx context.Context, stream string) (int64, error) {
	client, err := s.store.Client()
	if err != nil {
		return 0, err
	}
	keys, err := s.objects(ctx, stream)
	if err != nil {
		return 0, err
	}
	newest := "" // numbers in keys are hex of one width: the greatest is the newest
	for key := range keys {
		if strings.Contains(key, "/manifests/") && !strings.HasSuffix(key, ".index.json") {
			newest = max(newest, key)
		}
	}
	object, err := client.GetObject(ctx, bucket, newest, minio.GetObjectOptions{})
	if err != nil {
		return 0, fmt.Errorf("the newest manifest %q: %w", newest, err)
	}
	defer object.Close()
	var manifest struct {
		Body struct {
			Segments []struct {
				Key    string
				Size   int64
				Offset [2]int64
			}
		}
	}
	if err := json.NewDecoder(object).Decode(&manifest); err != nil {
		return 0, fmt.Errorf("the newest manifest %q: %w", newest, err)
	}
	end := int64(0)
	for _, segment := range manifest.Body.Segments {
		info, err := client.StatObject(ctx, bucket, prefix+"/"+segment.Key, minio.StatObjectOptions{})
		if err != nil || info.Size != segment.Size {
			return 0, fmt.Errorf("the manifest %q names %s of %d bytes, the bucket has %d: %w", newest, segment.Key, segment.Size, info.Size, err)
		}
		end = max(end, segment.Offset[1])
	}
	return end, nil
}

// counters are bytes that reads were given, by where they came from.
type counters map[string]float64

// counters asks the server's metrics for them.
func (s *Stage) counters(ctx context.Context) (counters, error) {
	metrics, err := s.metrics(ctx)
	if err != nil {
		return nil, err
	}
	all := counters{}
	for _, m := range metrics[readBytes].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == readSource {
				all[label.GetValue()] += m.GetCounter().GetValue()
			}
		}
	}
	return all, nil
}

// logUsed is how many bytes of the log's files hold something: blocks on disk
// can't tell, since files are made before they are needed and kept afterwards.
func (s *Stage) logUsed(ctx context.Context) (int64, error) {
	metrics, err := s.metrics(ctx)
	if err != nil {
		return 0, err
	}
	m := metrics[logUsedBytes].GetMetric()
	if len(m) != 1 {
		return 0, fmt.Errorf("the server has no metric %s", logUsedBytes)
	}
	return int64(m[0].GetGauge().GetValue()), nil
}

func (s *Stage) metrics(ctx context.Context) (map[string]*model.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.address+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask for metrics: %w", err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(common.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read the metrics: %w", err)
	}
	return families, nil
}

// What is asked of the server: bytes given to reads, and bytes of log files that
// hold something.
const (
	readBytes    = "varve_read_bytes_total"
	readSource   = "from"
	fromBucket   = "bucket"
	logUsedBytes = "varve_wal_used_bytes"
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
