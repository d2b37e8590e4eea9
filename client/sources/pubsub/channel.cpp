#include "pubsub/channel.hpp"

#include <algorithm>
#include <climits>
#include <fstream>
#include <future>
#include <sstream>

#include "core/signals.hpp"

namespace inbox::pubsub {

using google::protobuf::MessageLite;

void Call::start(const std::shared_ptr<grpc::Channel>& channel, std::chrono::milliseconds limit,
                 Done done) {
    const outbox::SignalsBlocked blocked;
    context_.set_deadline(std::chrono::system_clock::now() + limit);
    grpc::TemplatedGenericStub<MessageLite, MessageLite>(channel).UnaryCall(
        &context_, method_, {}, request_.get(), &answer_, std::move(done));
}

grpc::Status Call::wait(const std::shared_ptr<grpc::Channel>& channel,
                        std::chrono::milliseconds limit) {
    // The thread of gRPC may still be in set_value() when the caller goes on.
    const auto answered = std::make_shared<std::promise<grpc::Status>>();
    start(channel, limit, [answered](const grpc::Status& status) { answered->set_value(status); });
    return answered->get_future().get();
}

// ---------------------------------------------------------------------------------------------
// Requests
// ---------------------------------------------------------------------------------------------

static std::shared_ptr<Call> subscriber_call(const char* method, Call::Request request) {
    return std::make_shared<Call>(std::string("/google.pubsub.v1.Subscriber/") + method,
                                  std::move(request));
}

std::shared_ptr<Call> acknowledge(const std::string& subscription,
                                  const std::vector<std::string>& ack_ids) {
    auto request = std::make_unique<AcknowledgeRequest>();
    request->set_subscription(subscription);
    for (const std::string& ack_id : ack_ids)
        request->add_ack_ids(ack_id);
    return subscriber_call("Acknowledge", std::move(request));
}

std::shared_ptr<Call> modify_deadline(const std::string& subscription,
                                      const std::vector<std::string>& ack_ids,
                                      std::chrono::seconds deadline) {
    auto request = std::make_unique<ModifyAckDeadlineRequest>();
    request->set_subscription(subscription);
    request->set_ack_deadline_seconds(static_cast<std::int32_t>(deadline.count()));
    for (const std::string& ack_id : ack_ids)
        request->add_ack_ids(ack_id);
    return subscriber_call("ModifyAckDeadline", std::move(request));
}

std::shared_ptr<Call> seek(const std::string& subscription, Time to) {
    auto request = std::make_unique<SeekRequest>();
    request->set_subscription(subscription);
    const auto whole = std::chrono::floor<std::chrono::seconds>(to);
    request->mutable_time()->set_seconds(whole.time_since_epoch().count());
    request->mutable_time()->set_nanos(
        static_cast<std::int32_t>(std::chrono::nanoseconds(to - whole).count()));
    return subscriber_call("Seek", std::move(request));
}

std::shared_ptr<Call> seek(const std::string& subscription, const std::string& snapshot) {
    auto request = std::make_unique<SeekRequest>();
    request->set_subscription(subscription);
    request->set_snapshot(snapshot);
    return subscriber_call("Seek", std::move(request));
}

std::shared_ptr<Call> create_snapshot(const std::string& snapshot,
                                      const std::string& subscription) {
    auto request = std::make_unique<CreateSnapshotRequest>();
    request->set_name(snapshot);
    request->set_subscription(subscription);
    return subscriber_call("CreateSnapshot", std::move(request));
}

// ---------------------------------------------------------------------------------------------
// Connections
// ---------------------------------------------------------------------------------------------

static std::string read_file(const std::string& name) {
    std::ifstream file(name, std::ios::binary);
    std::ostringstream text;
    if (!file || !(text << file.rdbuf()))
        throw SourceError("cannot read the file \"" + name + "\"", false);
    return text.str();
}

// Pub/Sub takes messages of 10 MB.
static constexpr int max_message = 16 * 1024 * 1024;

// Tokens are valid for an hour. gRPC renews them.
static std::shared_ptr<grpc::CallCredentials> credentials_of_key(const std::string& file) {
    auto credentials = grpc::ServiceAccountJWTAccessCredentials(read_file(file), 3600);
    if (credentials == nullptr)
        throw SourceError("\"" + file + "\" is not the key of a service account", false);
    return credentials;
}

static std::shared_ptr<grpc::ChannelCredentials> make_credentials(const PubSubOptions& options) {
    if (!options.emulator_host.empty())
        return grpc::InsecureChannelCredentials();
    grpc::SslCredentialsOptions tls;
    if (!options.ca_file.empty())
        tls.pem_root_certs = read_file(options.ca_file);
    if (!options.key_file.empty())
        return grpc::CompositeChannelCredentials(grpc::SslCredentials(tls),
                                                 credentials_of_key(options.key_file));
    auto credentials = grpc::GoogleDefaultCredentials();
    if (credentials == nullptr)
        throw SourceError("no Google credentials on this machine", false);
    return credentials;
}

std::shared_ptr<grpc::Channel> make_channel(const PubSubOptions& options) {
    const outbox::SignalsBlocked blocked;
    grpc::ChannelArguments arguments;
    // An answer has as many messages as the limit allows, and one more.
    arguments.SetMaxReceiveMessageSize(static_cast<int>(
        std::min<std::size_t>(INT_MAX, options.max_outstanding_bytes + std::size_t{max_message})));
    // Servers count pings, so these are rare. The option matters because of another setting that
    // gRPC derives from it: TCP closes a connection on which a heartbeat is not acknowledged in
    // time.
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 360'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
    // Otherwise two sources of a process would share a connection and its flow control.
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const bool emulated = !options.emulator_host.empty();
    return grpc::CreateCustomChannel(emulated ? options.emulator_host : options.endpoint,
                                     make_credentials(options), arguments);
}

}  // namespace inbox::pubsub
