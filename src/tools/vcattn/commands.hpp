// SPDX-License-Identifier: Apache-2.0
// The subcommands of vcattn. Each add_* describes its options to CLI11 and appends what to run.
#pragma once

#include <functional>
#include <vector>

namespace CLI {
class App;
}

namespace vca::tools {

struct Command {
  CLI::App* app;             // the subcommand; runs when it was parsed
  std::function<int()> run;  // returns the exit code; throws UserError or Interrupted
};
using Commands = std::vector<Command>;

void add_bench(CLI::App& app, Commands& commands);
void add_compare(CLI::App& app, Commands& commands);
void add_generate(CLI::App& app, Commands& commands);
void add_info(CLI::App& app, Commands& commands);
void add_selftest(CLI::App& app, Commands& commands);

}  // namespace vca::tools
