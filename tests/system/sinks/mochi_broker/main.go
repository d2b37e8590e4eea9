// A broker of MQTT other than mosquitto: mochi-mqtt, on a port of 127.0.0.1, without a login.
//
//	mochi_broker 1883
//
// Clients may not publish to topics that begin with "forbidden/".
package main

import (
	"bytes"
	"log"
	"os"
	"os/signal"
	"strings"
	"syscall"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/listeners"
	"github.com/mochi-mqtt/server/v2/packets"
)

type access struct {
	mqtt.HookBase
}

func (*access) ID() string { return "access" }

func (*access) Provides(what byte) bool {
	return bytes.Contains([]byte{mqtt.OnConnectAuthenticate, mqtt.OnACLCheck}, []byte{what})
}

func (*access) OnConnectAuthenticate(*mqtt.Client, packets.Packet) bool { return true }

func (*access) OnACLCheck(_ *mqtt.Client, topic string, write bool) bool {
	return !write || !strings.HasPrefix(topic, "forbidden/")
}

func main() {
	server := mqtt.New(nil)
	if err := server.AddHook(&access{}, nil); err != nil {
		log.Fatal(err)
	}
	address := "127.0.0.1:" + os.Args[1]
	if err := server.AddListener(listeners.NewTCP(listeners.Config{ID: "tcp", Address: address})); err != nil {
		log.Fatal(err)
	}
	if err := server.Serve(); err != nil {
		log.Fatal(err)
	}
	ends := make(chan os.Signal, 1)
	signal.Notify(ends, syscall.SIGTERM, syscall.SIGINT)
	<-ends
}
