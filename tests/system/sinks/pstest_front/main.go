// A REST front for pstest, Google's fake of Pub/Sub, which itself speaks gRPC only.
//
//	pstest_front 8085      REST on 127.0.0.1:8085, gRPC on the port it prints
//
// Checks requests of publishers where the service does and pstest does not.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"regexp"
	"strings"

	"cloud.google.com/go/pubsub/apiv1/pubsubpb"
	"cloud.google.com/go/pubsub/pstest"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// A request as REST has it: the resource and the verb are in the path.
type call struct {
	context context.Context
	method  string
	name    string // projects/p/topics/t
	verb    string // publish, pull, ...; empty if the method says what to do
	body    []byte
}

// One method: its request from the body and the name, and what answers it.
func method[Request proto.Message, Answer proto.Message](
	c call, request Request, name func(string), answer func(context.Context, Request) (Answer, error),
) (proto.Message, error) {
	if len(c.body) > 0 {
		if err := protojson.Unmarshal(c.body, request); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "invalid JSON payload: %v", err)
		}
	}
	name(c.name)
	return answer(c.context, request)
}

func topics(c call, fake *pstest.GServer) (proto.Message, error) {
	switch c.method + " " + c.verb {
	case "POST publish":
		request := &pubsubpb.PublishRequest{}
		return method(c, request, func(n string) { request.Topic = n },
			func(ctx context.Context, r *pubsubpb.PublishRequest) (*pubsubpb.PublishResponse, error) {
				if err := check(r); err != nil {
					return nil, err
				}
				return fake.Publish(ctx, r)
			})
	case "PUT ":
		request := &pubsubpb.Topic{}
		return method(c, request, func(n string) { request.Name = n }, fake.CreateTopic)
	case "GET ":
		request := &pubsubpb.GetTopicRequest{}
		return method(c, request, func(n string) { request.Topic = n }, fake.GetTopic)
	case "DELETE ":
		request := &pubsubpb.DeleteTopicRequest{}
		return method(c, request, func(n string) { request.Topic = n }, fake.DeleteTopic)
	}
	return nil, status.Error(codes.Unimplemented, c.method+" "+c.verb)
}

func subscriptions(c call, fake *pstest.GServer) (proto.Message, error) {
	switch c.method + " " + c.verb {
	case "PUT ":
		request := &pubsubpb.Subscription{}
		return method(c, request, func(n string) { request.Name = n }, fake.CreateSubscription)
	case "GET ":
		request := &pubsubpb.GetSubscriptionRequest{}
		return method(c, request, func(n string) { request.Subscription = n }, fake.GetSubscription)
	case "POST pull":
		request := &pubsubpb.PullRequest{}
		return method(c, request, func(n string) { request.Subscription = n }, fake.Pull)
	case "POST acknowledge":
		request := &pubsubpb.AcknowledgeRequest{}
		return method(c, request, func(n string) { request.Subscription = n }, fake.Acknowledge)
	case "POST modifyAckDeadline":
		request := &pubsubpb.ModifyAckDeadlineRequest{}
		return method(c, request, func(n string) { request.Subscription = n }, fake.ModifyAckDeadline)
	}
	return nil, status.Error(codes.Unimplemented, c.method+" "+c.verb)
}

func check(request *pubsubpb.PublishRequest) error {
	refuse := func(format string, values ...any) error {
		return status.Errorf(codes.InvalidArgument, format, values...)
	}
	if n := len(request.Messages); n < 1 || n > 1000 {
		return refuse("The value for message_count is out of range. You passed %d.", n)
	}
	if n := proto.Size(request); n > 10_000_000 {
		return refuse("Request payload size exceeds the limit: %d bytes.", n)
	}
	for _, message := range request.Messages {
		if message.OrderingKey != request.Messages[0].OrderingKey {
			return refuse("All messages must have the same ordering key.")
		}
		if len(message.OrderingKey) > 1024 {
			return refuse("The ordering key is too long.")
		}
		if len(message.Data) == 0 && len(message.Attributes) == 0 {
			return refuse("Some messages are empty.")
		}
		if len(message.Attributes) > 100 {
			return refuse("Too many attributes: %d.", len(message.Attributes))
		}
		for name, value := range message.Attributes {
			if name == "" || len(name) > 256 || len(value) > 1024 || strings.HasPrefix(name, "goog") {
				return refuse("The attribute %.300q is not valid.", name)
			}
		}
	}
	return nil
}

var path = regexp.MustCompile(`^/v1/(projects/[^/:]+/(topics|subscriptions)/([^/:]+))(?::([a-zA-Z]+))?$`)
var identifier = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.~+%-]{2,254}$`)

func handle(request *http.Request, fake *pstest.GServer) (proto.Message, error) {
	parts := path.FindStringSubmatch(request.URL.Path)
	if parts == nil {
		return nil, status.Errorf(codes.NotFound, "no such method: %s", request.URL.Path)
	}
	if !identifier.MatchString(parts[3]) || strings.HasPrefix(parts[3], "goog") {
		return nil, status.Errorf(codes.InvalidArgument, "Invalid [%s] name: (name=%s)", parts[2], parts[1])
	}
	body, err := io.ReadAll(request.Body)
	if err != nil {
		return nil, status.Error(codes.Canceled, err.Error())
	}
	c := call{request.Context(), request.Method, parts[1], parts[4], body}
	if parts[2] == "topics" {
		return topics(c, fake)
	}
	return subscriptions(c, fake)
}

var httpStatus = map[codes.Code]int{
	codes.InvalidArgument: 400, codes.FailedPrecondition: 400, codes.Unauthenticated: 401,
	codes.PermissionDenied: 403, codes.NotFound: 404, codes.AlreadyExists: 409, codes.Aborted: 409,
	codes.ResourceExhausted: 429, codes.Canceled: 499, codes.Unimplemented: 501, codes.Unavailable: 503,
	codes.DeadlineExceeded: 504,
}

func answer(writer http.ResponseWriter, message proto.Message, err error) {
	writer.Header().Set("Content-Type", "application/json; charset=UTF-8")
	if err != nil {
		failure := status.Convert(err)
		number, known := httpStatus[failure.Code()]
		if !known {
			number = 500
		}
		writer.WriteHeader(number)
		json.NewEncoder(writer).Encode(map[string]any{"error": map[string]any{
			"code": number, "message": failure.Message(), "status": code.Code(failure.Code()).String(),
		}})
		return
	}
	text, err := protojson.Marshal(message)
	if err != nil {
		log.Print(err)
	}
	writer.Write(text)
}

func main() {
	server := pstest.NewServer()
	fmt.Println(server.Addr)
	os.Stdout.Close()
	handler := func(writer http.ResponseWriter, request *http.Request) {
		message, err := handle(request, &server.GServer)
		answer(writer, message, err)
	}
	log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(handler)))
}
