// SPDX-License-Identifier: BSD-2-Clause
// Numbers that depend on the seed and the step only, so that a step can be left out without changing the
// others.
#pragma once

#include <stdint.h>

#include <initializer_list>

namespace random_program {

inline uint64_t mix(uint64_t x) {  // splitmix64's finaliser
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

class Draw {
  public:
    Draw(uint64_t seed, uint64_t step) : state_(mix(mix(seed) + step)) {}
    uint64_t number() { return state_ = mix(state_); }
    unsigned below(unsigned limit) { return static_cast<unsigned>(number() % limit); }
    bool one_in(unsigned n) { return below(n) == 0; }
    int of(std::initializer_list<int> choices) {
        return choices.begin()[below(static_cast<unsigned>(choices.size()))];
    }
    // A length: mostly small, now and then up to `most`.
    long length(unsigned most) {
        static constexpr unsigned kScale[] = {8, 100, 1448, 5000, 20000};
        unsigned scale = kScale[below(5)];
        return 1 + below(scale < most ? scale : most);
    }

  private:
    uint64_t state_;
};

}  // namespace random_program
