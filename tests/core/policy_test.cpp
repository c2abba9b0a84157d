// SPDX-License-Identifier: Apache-2.0
// The grouping policy as a table of steps.
#include "core/policy.hpp"

#include <gtest/gtest.h>

#include <string>

namespace vca::core {
namespace {

// One character a step: G regroup, k keep, i identity. f: what every kept step measures, as a share
// of f at grouping.
std::string history(Policy policy, int64_t calls_per_step, double f) {
  std::string text;
  HeadHistory head;
  for (int64_t step = 0; step < policy.steps; ++step)
    for (int64_t call = 0; call < calls_per_step; ++call) {
      const Action action = decide(policy, step, head);
      if (action == Action::regroup) {
        head.has_order = true;
        head.f_at_grouping = head.f_last = 0.4;
      } else if (action == Action::keep && head.last_call_step != step) {
        head.f_last = f * 0.4;
      }
      head.last_call_step = step;
      text += action == Action::regroup ? 'G' : action == Action::keep ? 'k' : 'i';
    }
  return text;
}

Policy with_steps(int32_t steps) {
  Policy p;
  p.steps = steps;
  p.window = default_window(steps);
  return p;
}

TEST(Policy, DefaultWindowIsAQuarterRoundedUp) {
  EXPECT_EQ(default_window(1), 1);
  EXPECT_EQ(default_window(4), 1);
  EXPECT_EQ(default_window(5), 2);
  EXPECT_EQ(default_window(16), 4);
  EXPECT_EQ(default_window(40), 10);
  EXPECT_EQ(default_window(50), 13);
  EXPECT_EQ(default_window(INT32_MAX), 536870912);
}

TEST(Policy, WithoutDecayTheOrderIsKept) {
  EXPECT_EQ(history(with_steps(1), 1, 1.0), "G");
  EXPECT_EQ(history(with_steps(4), 1, 1.0), "Gkkk");
  EXPECT_EQ(history(with_steps(16), 1, 1.0), "GGGG" + std::string(12, 'k'));
  EXPECT_EQ(history(with_steps(40), 1, 1.0), std::string(10, 'G') + std::string(30, 'k'));
  EXPECT_EQ(history(with_steps(50), 1, 1.0), std::string(13, 'G') + std::string(37, 'k'));
}

// A step that measures less than 0.9 regroups the next one: the decision never waits for the values
// of its own step.
TEST(Policy, DecayRegroupsOneStepLater) {
  EXPECT_EQ(history(with_steps(8), 1, 0.89), "GGkGkGkG");
  EXPECT_EQ(history(with_steps(8), 1, 0.9), "GGkkkkkk");
  Policy reuse = with_steps(8);
  reuse.after = VCA_AFTER_REUSE;
  EXPECT_EQ(history(reuse, 1, 0.1), "GGkkkkkk");
  Policy identity = with_steps(8);
  identity.after = VCA_AFTER_IDENTITY;
  EXPECT_EQ(history(identity, 1, 0.1), "GGiiiiii");
  Policy tolerant = with_steps(8);
  tolerant.decay = 0.5;
  EXPECT_EQ(history(tolerant, 1, 0.6), "GGkkkkkk");
}

TEST(Policy, RefreshSpacesTheWindow) {
  Policy p = with_steps(16);
  p.refresh = 3;
  EXPECT_EQ(history(p, 1, 1.0), "GkkG" + std::string(12, 'k'));
}

TEST(Policy, NoWindowStillFormsAFirstOrder) {
  Policy p = with_steps(4);
  p.window = 0;
  EXPECT_EQ(history(p, 1, 1.0), "Gkkk");
  p.after = VCA_AFTER_IDENTITY;
  EXPECT_EQ(history(p, 1, 1.0), "iiii");
}

TEST(Policy, GuidanceBranchesShareAStep) {
  Policy p = with_steps(8);
  EXPECT_EQ(history(p, 2, 1.0), "GGGG" + std::string(12, 'k'));
  p.share_cfg = true;
  EXPECT_EQ(history(p, 2, 1.0), "GkGk" + std::string(12, 'k'));
}

// Fewer pair passes where the next step goes on: never in the window's last step.
TEST(Policy, TheNextStepGroupsAgainInsideTheWindowOnly) {
  const auto followed = [](const Policy& p) {
    std::string out;
    for (int64_t step = 0; step < p.steps; ++step) out += regroups_next(p, step) ? 'f' : '-';
    return out;
  };
  Policy p = with_steps(16);
  EXPECT_EQ(followed(p), "fff" + std::string(13, '-'));
  p.window = 6;
  p.refresh = 3;
  EXPECT_EQ(followed(p), "--f" + std::string(13, '-'));
  EXPECT_EQ(followed(with_steps(1)), "-");
  p.window = 0;
  EXPECT_EQ(followed(p), std::string(16, '-'));
}

// A state that is first used in the middle of a run has no order yet.
TEST(Policy, ALateStartGroups) {
  Policy p = with_steps(40);
  EXPECT_EQ(decide(p, 30, HeadHistory{}), Action::regroup);
  p.after = VCA_AFTER_REUSE;
  EXPECT_EQ(decide(p, 30, HeadHistory{}), Action::regroup);
}

}  // namespace
}  // namespace vca::core
