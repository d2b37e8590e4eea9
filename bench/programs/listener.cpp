// A session that LISTENs and takes every notification, until it is terminated.
//
//   listener CONNINFO CHANNEL
//
// Prints "listening" when it does.
#include <poll.h>

#include <string>

#include "connection.hpp"

namespace outbox::bench {

static void listen(const char* conninfo, const char* channel) {
    Connection connection(conninfo);
    connection.execute((std::string("LISTEN ") + channel).c_str());
    std::puts("listening");
    std::fflush(stdout);

    pollfd wait{PQsocket(connection.get()), POLLIN, 0};
    while (poll(&wait, 1, -1) > 0 && PQconsumeInput(connection.get()))
        while (PGnotify* notification = PQnotifies(connection.get()))
            PQfreemem(notification);
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 3)
        outbox::bench::die("usage", "listener CONNINFO CHANNEL");
    outbox::bench::listen(argv[1], argv[2]);
}
