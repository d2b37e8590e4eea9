// The RabbitMQ source by itself: rabbitmq_source OPTION=VALUE ..., as inbox::RabbitmqOptions names them. See
// source_program.hpp. It also takes these commands:
//
//   stats              inbox::RabbitmqStats
//   recall             numbers of the deliveries that must be given back
//   positions NUMBERS  what would be saved with these deliveries
//   moved              what has moved since
//
// With saved=OFFSET this is the saved offset of the stream.
#include <optional>

#include "rabbitmq_options.hpp"
#include "source_program.hpp"

namespace {

class RabbitmqDriver : public driver::Driver {
  public:
    explicit RabbitmqDriver(inbox::RabbitmqSource& source) : Driver(source), source_(source) {}

  private:
    Json::Value execute(const std::vector<std::string>& f) override {
        if (f[0] == "stats")
            return stats();
        if (f[0] == "recall")
            return recall();
        if (f[0] == "positions")
            return positions(f.at(1));
        if (f[0] == "moved")
            return json_of(source_.moved_positions());
        return Driver::execute(f);
    }

    Json::Value stats() const {
        const inbox::RabbitmqStats stats = source_.stats();
        Json::Value json;
        json["received"] = Json::UInt64(stats.received);
        json["redelivered"] = Json::UInt64(stats.redelivered);
        json["acked"] = Json::UInt64(stats.acked);
        json["nacked"] = Json::UInt64(stats.nacked);
        json["connections"] = Json::UInt64(stats.connections);
        json["most_failed_deliveries"] = Json::Int64(stats.most_failed_deliveries);
        json["outstanding"] = Json::UInt64(stats.outstanding);
        json["waiting"] = Json::UInt64(stats.waiting);
        json["is_active"] = stats.is_active;
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

    Json::Value positions(const std::string& numbers) {
        std::vector<const inbox::Delivery*> chosen;
        std::istringstream in(numbers);
        for (std::string number; std::getline(in, number, ',');)
            chosen.push_back(&received().at(std::stoul(number)));
        return json_of(source_.positions(chosen));
    }

    static Json::Value json_of(const std::vector<inbox::Position>& positions) {
        Json::Value json(Json::arrayValue);
        for (const inbox::Position& position : positions)
            json.append(position.subscription + ' ' + position.message_id);
        return json;
    }

    inbox::RabbitmqSource& source_;
};

}  // namespace

int main(int count, char** arguments) {
    return driver::run_program(
        count, arguments,
        [](driver::Options& options) {
            std::string saved;
            options.take("saved", saved);
            auto source =
                std::make_unique<inbox::RabbitmqSource>(driver::rabbitmq_options(options));
            source->set_positions([saved](const std::vector<std::string>& subscriptions) {
                std::vector<inbox::Position> positions;
                if (!saved.empty())
                    positions.push_back({subscriptions.front(), saved, {}});
                return positions;
            });
            return source;
        },
        [](inbox::RabbitmqSource& source) { RabbitmqDriver(source).run(); });
}
