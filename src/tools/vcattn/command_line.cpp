// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/command_line.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/interrupt.hpp"
#include "vca/vca.h"

namespace vca::tools {
namespace {

int fail(const char* text, int code) {
  // A progress line may stand there.
  std::fprintf(stderr, "vcattn: %s\n", text);
  return code;
}

// An empty value is mostly a shell variable that was not set. Taken as "option not given", it would
// end in exit code 0 and no file.
void refuse_empty_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options())
    for (const std::string& value : option->results())
      if (value.empty())
        throw UserError(option->get_name() + " is empty", "\"\"", "a value",
                        "leave the option out to get its default");
}

int run_command(const Command& command) {
  try {
    refuse_empty_values(*command.app);
    const int code = command.run();
    check_interrupt();
    // What is still buffered can meet a full disk, too.
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)
      return fail("cannot write to the standard output", kExitBadInput);
    return code;
  } catch (const Interrupted&) {
    return fail("interrupted", kExitInterrupted);
  } catch (const UserError& e) {
    return fail(e.what(), kExitBadInput);
  } catch (const std::bad_alloc&) {
    return fail("out of memory\n  hint:    fewer recipes or threads at a time, or a smaller dump",
                kExitBadInput);
  } catch (const std::exception& e) {
    return fail(e.what(), kExitBadInput);
  }
}

}  // namespace

int run_command_line(int argc, char** argv, void (*add)(CLI::App& app, Commands& commands)) {
  install_signal_handlers();
  CLI::App app{"Low-bit attention for video diffusion transformers."};
  app.name("vcattn");
  app.set_version_flag("--version", std::string("vcattn ") + vca_version() + " (specification " +
                                        std::to_string(vca_spec_version()) + ")");
  app.require_subcommand(1);
  Commands commands;
  add(app, commands);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    // CLI11 has a code for each kind of mistake; help and version are no mistake.
    return app.exit(e) == 0 ? kExitOk : kExitBadInput;
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return run_command(command);
  }
  return kExitBadInput;
}

}  // namespace vca::tools
