package edge

import (
	"errors"
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/varve-io/varve/meta"
)

// codec is one of the two encodings. A message that does not decode is not an
// error of the codec: connect would answer it itself, without a detail. Instead
// the message comes out empty and marked, and [undecodable] says so to the watcher.
type codec struct {
	name      string
	marshal   func([]byte, proto.Message) ([]byte, error)
	unmarshal func([]byte, proto.Message) error
}

func codecs() []connect.HandlerOption {
	fromJSON := func(b []byte, m proto.Message) error {
		if len(b) == 0 {
			return errors.New("nothing is not a JSON object")
		}
		return protojson.Unmarshal(b, m)
	}
	var list []connect.HandlerOption
	for _, c := range []*codec{
		{"proto", proto.MarshalOptions{}.MarshalAppend, proto.Unmarshal},
		{"json", protojson.MarshalOptions{}.MarshalAppend, fromJSON},
		{"json; charset=utf-8", protojson.MarshalOptions{}.MarshalAppend, fromJSON},
	} {
		list = append(list, connect.WithCodec(c))
	}
	return list
}

// Name is what content types call it.
func (c *codec) Name() string { return c.name }

// Marshal encodes a message.
func (c *codec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend encodes a message to the end of b; connect looks for it.
func (c *codec) MarshalAppend(b []byte, m any) ([]byte, error) {
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no protobuf message", m)
	}
	return c.marshal(b, p)
}

// markField is a field number that no message of ours has.
const markField protowire.Number = 536870911

// Unmarshal decodes a message, or marks it.
func (c *codec) Unmarshal(b []byte, m any) error {
	p, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is no protobuf message", m)
	}
	err := c.unmarshal(b, p)
	r := p.ProtoReflect()
	if err == nil {
		if len(r.GetUnknown()) > 0 {
			r.SetUnknown(nil) // fields of a later version, or a client's own mark
		}
		return nil
	}
	proto.Reset(p)
	r.SetUnknown(protowire.AppendString(protowire.AppendTag(nil, markField, protowire.BytesType), err.Error()))
	return nil
}

// undecodable says what was wrong with the bytes of a request, or nil.
func undecodable(m any) error {
	p, ok := m.(proto.Message)
	if !ok {
		return nil
	}
	b := p.ProtoReflect().GetUnknown()
	n, _, size := protowire.ConsumeTag(b)
	if size < 0 || n != markField {
		return nil
	}
	why, _ := protowire.ConsumeString(b[size:])
	return meta.Invalidf("the request is no %s: %s", p.ProtoReflect().Descriptor().FullName(), why)
}
