#include "metrics_page.hpp"

#include <map>
#include <sstream>

namespace outboxctl {

namespace {

struct Family {
    std::string head;  // TYPE and HELP, of the page that has it first
    std::string samples;
};

// Returns the second word of "# TYPE family type" and "# HELP family text".
std::string family_of(const std::string& comment) {
    std::istringstream words(comment);
    std::string hash, keyword, family;
    words >> hash >> keyword >> family;
    return family;
}

}  // namespace

std::string join_metrics(const std::vector<std::string>& pages) {
    std::vector<std::string> order;
    std::map<std::string, Family> families;
    for (const std::string& page : pages) {
        std::istringstream lines(page);
        std::string line, name;
        bool is_new = false;
        while (std::getline(lines, line)) {
            if (line == "# EOF")
                break;
            if (!line.starts_with('#')) {
                families[name].samples += line + '\n';
                continue;
            }
            if (family_of(line) != name) {
                name = family_of(line);
                is_new = families.find(name) == families.end();
                if (is_new)
                    order.push_back(name);
            }
            if (is_new)
                families[name].head += line + '\n';
        }
    }
    std::string all;
    for (const std::string& name : order)
        all += families[name].head + families[name].samples;
    return all + "# EOF\n";
}

}  // namespace outboxctl
