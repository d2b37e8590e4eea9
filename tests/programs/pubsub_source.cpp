// The Pub/Sub source by itself: pubsub_source OPTION=VALUE ..., as inbox::PubSubOptions names them,
// and takes the commands of source_driver.hpp, and these:
//
//   stats                                      inbox::PubSubStats
//   create_snapshot ID, seek_to_snapshot ID    {}
#include "inbox/sources/pubsub.hpp"
#include "source_program.hpp"

namespace {

inbox::PubSubOptions pubsub_options(driver::Options& options) {
    inbox::PubSubOptions o;
    options.take("project", o.project);
    options.take("subscription", o.subscription);
    options.take("topic", o.topic);
    options.take("endpoint", o.endpoint);
    options.take("emulator_host", o.emulator_host);
    options.take("key_file", o.key_file);
    options.take("ca_file", o.ca_file);
    options.take("max_outstanding_messages", o.max_outstanding_messages);
    options.take("max_outstanding_bytes", o.max_outstanding_bytes);
    options.take("min_ack_deadline", o.min_ack_deadline);
    options.take("max_ack_deadline", o.max_ack_deadline);
    options.take("max_lease", o.max_lease);
    options.take("heartbeat", o.heartbeat);
    options.take("client_id", o.client_id);
    return o;
}

class PubSubDriver : public driver::Driver {
  public:
    explicit PubSubDriver(inbox::PubSubSource& source) : Driver(source), source_(source) {}

  private:
    Json::Value execute(const std::vector<std::string>& f) override {
        if (f[0] == "stats")
            return stats();
        if (f[0] == "create_snapshot")
            source_.create_snapshot(f.at(1));
        else if (f[0] == "seek_to_snapshot")
            source_.seek_to_snapshot(f.at(1));
        else
            return Driver::execute(f);
        return Json::Value(Json::objectValue);
    }

    Json::Value stats() const {
        const inbox::PubSubStats stats = source_.stats();
        Json::Value json;
        json["streams"] = Json::UInt64(stats.streams);
        json["received"] = Json::UInt64(stats.received);
        json["acked"] = Json::UInt64(stats.acked);
        json["nacked"] = Json::UInt64(stats.nacked);
        json["extended"] = Json::UInt64(stats.extended);
        json["overtaken"] = Json::UInt64(stats.overtaken);
        json["expired"] = Json::UInt64(stats.expired);
        json["refused"] = Json::UInt64(stats.refused);
        json["lost_acks"] = Json::UInt64(stats.lost_acks);
        json["leased"] = Json::UInt64(stats.leased);
        json["waiting"] = Json::UInt64(stats.waiting);
        return json;
    }

    inbox::PubSubSource& source_;
};

}  // namespace

int main(int count, char** arguments) {
    return driver::run_program(
        count, arguments,
        [](driver::Options& options) {
            return std::make_unique<inbox::PubSubSource>(pubsub_options(options));
        },
        [](inbox::PubSubSource& source) { PubSubDriver(source).run(); });
}
