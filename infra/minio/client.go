package minio

import (
	"context"
	"fmt"

	miniogo "github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// Region is the region that the server says it is in.
const Region = "us-east-1"

// Client returns a new minio-go client of this server: an implementation of the protocol
// that shares nothing with the one Varve stores its objects with.
func (s *Server) Client() (*miniogo.Client, error) {
	c, err := miniogo.New(s.addr(), &miniogo.Options{
		Creds:  credentials.NewStaticV4(s.opts.AccessKey, s.opts.SecretKey, ""),
		Region: Region,
	})
	if err != nil {
		return nil, fmt.Errorf("make a client of MinIO at %s: %w", s.Endpoint(), err)
	}
	return c, nil
}

// MakeBucket makes a bucket; one that exists is fine.
func (s *Server) MakeBucket(ctx context.Context, name string) error {
	c, err := s.Client()
	if err != nil {
		return err
	}
	if err := c.MakeBucket(ctx, name, miniogo.MakeBucketOptions{Region: Region}); err != nil {
		if code := miniogo.ToErrorResponse(err).Code; code == miniogo.BucketAlreadyOwnedByYou || code == miniogo.BucketAlreadyExists {
			return nil
		}
		return fmt.Errorf("make the bucket %s on MinIO at %s: %w", name, s.Endpoint(), err)
	}
	return nil
}

// probe makes one request with the credentials: it succeeds only on this server.
func (s *Server) probe(ctx context.Context) error {
	c, err := s.Client()
	if err != nil {
		return err
	}
	_, err = c.ListBuckets(ctx)
	return err
}
