// The Kafka source by itself: kafka_source OPTION=VALUE ..., as inbox::KafkaOptions names them, or
// as librdkafka does, and takes the commands of source_driver.hpp, and these:
//
//   stats      inbox::KafkaStats
//   recall     numbers of the deliveries that must be given back
#include "inbox/sources/kafka.hpp"
#include "kafka_options.hpp"
#include "source_driver.hpp"

namespace {

class KafkaDriver : public driver::Driver {
  public:
    explicit KafkaDriver(inbox::KafkaSource& source) : Driver(source), source_(source) {}

  private:
    Json::Value execute(const std::vector<std::string>& f) override {
        if (f[0] == "stats")
            return stats();
        if (f[0] == "recall")
            return recall();
        return Driver::execute(f);
    }

    Json::Value stats() const {
        const inbox::KafkaStats stats = source_.stats();
        Json::Value json;
        json["received"] = Json::UInt64(stats.received);
        json["acked"] = Json::UInt64(stats.acked);
        json["nacked"] = Json::UInt64(stats.nacked);
        json["commits"] = Json::UInt64(stats.commits);
        json["assignments"] = Json::UInt64(stats.assignments);
        json["revocations"] = Json::UInt64(stats.revocations);
        json["lost"] = Json::UInt64(stats.lost);
        json["partitions"] = Json::UInt64(stats.partitions);
        json["outstanding"] = Json::UInt64(stats.outstanding);
        json["waiting"] = Json::UInt64(stats.waiting);
        json["lag"] = Json::Int64(stats.lag);
        return json;
    }

    Json::Value recall() {
        Json::Value numbers(Json::arrayValue);
        if (const auto recalled = source_.recall())
            for (std::size_t i = 0; i < received().size(); i++)
                if (recalled(received()[i]))
                    numbers.append(Json::UInt64(i));
        return numbers;
    }

    inbox::KafkaSource& source_;
};

}  // namespace

int main(int count, char** arguments) {
    std::map<std::string, std::string> given;
    for (int i = 1; i < count; i++) {
        const std::string option = arguments[i];
        given[option.substr(0, option.find('='))] = option.substr(option.find('=') + 1);
    }
    try {
        inbox::KafkaSource source(driver::kafka_options(given));
        KafkaDriver(source).run();
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
