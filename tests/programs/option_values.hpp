// Options of test programs, by which those of sources are set.
#pragma once

#include <chrono>
#include <iostream>
#include <map>
#include <string>
#include <utility>

#include "inbox/source.hpp"

namespace driver {

// Of the command line, name=value each. take() what is known; what is left is wrong.
class Options {
  public:
    explicit Options(std::map<std::string, std::string> given) : given_(std::move(given)) {}
    Options(int count, char** arguments) {
        for (int i = 1; i < count; i++) {
            const std::string option = arguments[i];
            given_[option.substr(0, option.find('='))] = option.substr(option.find('=') + 1);
        }
    }
    void take(const char* name, std::string& value) {
        if (const auto found = given_.extract(name))
            value = found.mapped();
    }
    void take(const char* name, int& value) {
        if (const auto found = given_.extract(name))
            value = std::stoi(found.mapped());
    }
    void take(const char* name, bool& value) {
        if (const auto found = given_.extract(name))
            value = found.mapped() != "0";
    }
    void take(const char* name, std::size_t& value) {
        if (const auto found = given_.extract(name))
            value = std::stoull(found.mapped());
    }
    template <class Rep, class Period>
    void take(const char* name, std::chrono::duration<Rep, Period>& value) {
        if (const auto found = given_.extract(name))
            value = std::chrono::duration<Rep, Period>(std::stoll(found.mapped()));
    }
    void take(const char* name, inbox::OnRecreated& value) {
        if (const auto found = given_.extract(name))
            value = found.mapped() == "stop" ? inbox::OnRecreated::stop
                                             : inbox::OnRecreated::begin_again;
    }
    bool are_all_taken() const {
        for (const auto& [name, value] : given_)
            std::cerr << "unknown option " << name << '=' << value << '\n';
        return given_.empty();
    }

  private:
    std::map<std::string, std::string> given_;
};

}  // namespace driver
