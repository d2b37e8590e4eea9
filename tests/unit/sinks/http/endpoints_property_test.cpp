// Whatever goes wrong, every endpoint gets every event of its topics at least once, and in order per
// key: endpoints that fail, hang, refuse, are paused, deleted or new; questions that fail, with an
// effect or without; relays that start again.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "unit/sinks/http/driven_endpoints.hpp"

namespace outbox {
namespace {

class EndpointsProperty : public DrivenEndpoints, public testing::WithParamInterface<unsigned> {
  protected:
    std::size_t below(std::size_t n) { return random_() % n; }
    bool one_in(std::size_t n) { return below(n) == 0; }
    std::string any_endpoint() {
        auto at = tables_.all().begin();
        std::advance(at, below(tables_.all().size()));
        return at->first;
    }

    void add_endpoint() {
        static constexpr const char* topics[] = {"*", "a", "b,c", "a*, b"};
        endpoint("e" + std::to_string(next_endpoint_++), topics[below(4)]);
        endpoints().look_again();
    }

    // How each endpoint answers changes now and then.
    void shuffle_moods() {
        std::map<std::string, int> moods;
        for (const auto& [name, endpoint] : tables_.all())
            moods[name] = static_cast<int>(below(8));
        const unsigned seed = static_cast<unsigned>(random_());
        answer_now([moods, random = std::mt19937(seed)](const std::string& name,
                                                        std::int64_t position) mutable {
            const auto mood = moods.find(name);
            switch (mood == moods.end() ? 7 : mood->second) {
                case 0:
                    return 500;
                case 1:
                    return 0;
                case 2:
                    return position % 5 == 0 ? 400 : 204;
                case 3:
                    return random() % 3 == 0 ? 503 : 204;
                case 4:
                    return position % 7 == 0 ? 500 : 204;
                case 5:
                    return random() % 3 == 0 ? -1 : 204;
                default:
                    return 204;
            }
        });
    }

    void disturb() {
        switch (below(12)) {
            case 0:
                add_endpoint();
                break;
            case 1:
                if (tables_.all().size() > 3) {
                    tables_.remove(any_endpoint());
                    endpoints().look_again();
                }
                break;
            case 2:
            case 3: {
                const std::string name = any_endpoint();
                tables_.pause(name, !tables_.at(name).row.paused);
                endpoints().look_again();
                break;
            }
            case 4:
                restart();
                break;
            case 5:
            case 6:
                shuffle_moods();
                break;
            default:
                break;
        }
    }

    // Asks, and lets time pass before the answer, or lets the question fail.
    void consult() {
        if (!under_way_ && is_due())
            ask();
        else if (under_way_ && one_in(3))
            fail(one_in(2));
        else if (under_way_ && one_in(2))
            answer();
    }

    void check() {
        for (const auto& [name, endpoint] : tables_.all()) {
            SCOPED_TRACE(name);
            const std::vector<std::int64_t> got = accepted(name);
            std::set<std::int64_t> seen;
            std::map<std::string, std::int64_t> last;
            for (const std::int64_t position : got) {
                const LoggedEvent& event =
                    tables_.logged().at(static_cast<std::size_t>(position - 1));
                if (!seen.insert(position).second || event.key.empty())
                    continue;
                EXPECT_GT(position, last[event.key]) << "out of order: " << event.key;
                last[event.key] = position;
            }
            for (const LoggedEvent& event : tables_.logged()) {
                if (event.xid < endpoint.created || !FakeEndpointTables::takes(endpoint, event))
                    continue;
                const auto delivery = endpoint.deliveries.find(event.position);
                const bool is_dead = delivery != endpoint.deliveries.end() && delivery->second.dead;
                EXPECT_TRUE(is_dead || seen.contains(event.position))
                    << event.position << " is missing";
            }
        }
    }

    std::mt19937 random_{GetParam()};
    int next_endpoint_ = 0;
};

TEST_P(EndpointsProperty, EveryEndpointGetsEverythingInOrder) {
    // An event that is refused for long becomes a dead letter, and lets later ones of its key pass.
    tables_.refused_after = 1'000'000;
    start({{"retry_base", "20ms"}, {"retry_max", "200ms"}, {"max_connections", "8"}});
    for (int i = 0; i < 4; i++)
        add_endpoint();
    asks_ = false;
    static constexpr const char* topics[] = {"a", "b", "c", "ab"};
    static constexpr const char* keys[] = {"", "k1", "k2", "k3"};
    for (int step = 0; step < 150; step++) {
        for (std::size_t n = below(3); n > 0; n--)
            log(topics[below(4)], keys[below(4)]);
        if (one_in(2))
            read(1 + below(4));
        if (one_in(4))
            disturb();
        consult();
        turn();
    }
    answer_now(nullptr);
    for (auto& [name, endpoint] : tables_.all())
        if (endpoint.row.paused)
            tables_.pause(name, false);
    if (under_way_)
        answer();
    endpoints().look_again();
    read();
    ASSERT_TRUE(ask_next());  // until then an endpoint may be unknown, and is not behind
    answer();
    ASSERT_TRUE(turn_until([&] {
        return all_confirmed() &&
               std::all_of(tables_.all().begin(), tables_.all().end(),
                           [](const auto& entry) { return !entry.second.row.behind; });
    }));
    EXPECT_EQ(endpoints().in_flight(), 0u);
    check();
}

INSTANTIATE_TEST_SUITE_P(Seeds, EndpointsProperty, testing::Range(1u, 41u));

}  // namespace
}  // namespace outbox
