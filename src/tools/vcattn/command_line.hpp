// SPDX-License-Identifier: Apache-2.0
// From argc and argv to an exit code, whatever the subcommands.
#pragma once

#include "tools/vcattn/commands.hpp"

namespace vca::tools {

// `add` appends the subcommands. Parses, runs the one that was given, turns failures into exit
// codes.
int run_command_line(int argc, char** argv, void (*add)(CLI::App& app, Commands& commands));

}  // namespace vca::tools
