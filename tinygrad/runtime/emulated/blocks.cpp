// Blocks of GPU threads on a CPU: the library that launches the kernels of the emulator.
//
// The blocks of a grid run on the cores, one block a core at a time. The threads of a block run one after another
// on one fiber, until one of them waits at a barrier: it keeps that fiber, and the next thread gets another. Once
// every thread of the block waits, all go on; every second time in reverse order, so that what is right only in
// one order is found out. Where some threads wait and others have ended, the launch fails.
#include "blocks.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace {

using emulator::Index;
using Kernel = void (*)(void **arguments, emulator::Core *core);

constexpr size_t STACK_BYTES = 256 << 10;  // of a fiber; pages that nobody touches take no memory
constexpr size_t WORTH_A_CORE = 4096;      // threads: starting a core costs about as much as running so many

size_t count(Index size) { return size_t(size.x) * size.y * size.z; }

Index place(size_t number, Index size) {
    return {unsigned(number % size.x), unsigned(number / size.x % size.y), unsigned(number / size.x / size.y)};
}

// Runs the threads of one block at a time.
class Core : public emulator::Core {
public:
    Core(Kernel kernel, void **arguments, Index threads) : kernel(kernel), arguments(arguments) {
        size = threads;
        wait = [](emulator::Core *core) { static_cast<Core *>(core)->suspend(); };
    }

    // Runs every thread of a block. False where threads disagree about a barrier.
    bool run(Index number) {
        const size_t all = count(size);
        block = number;
        started = waiting = 0;
        while (started < all) resume(idle());
        for (bool backwards = true; waiting == all; backwards = !backwards) {
            waiting = 0;
            for (size_t i = 0; i < all; i++) resume(*fibers[backwards ? all - 1 - i : i]);
        }
        return waiting == 0;
    }

private:
    struct Fiber {
        ucontext_t beginning;
        jmp_buf place;  // where it goes on; jumping there costs a fiftieth of what swapcontext does
        bool begun = false;
        std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
        Index thread;
    };

    const Kernel kernel;
    void **const arguments;
    size_t started = 0, waiting = 0;
    jmp_buf scheduler;
    Fiber *running = nullptr;
    std::vector<std::unique_ptr<Fiber>> fibers;  // of a block that starts, the first `waiting` have a thread

    Fiber &idle() {
        if (waiting < fibers.size()) return *fibers[waiting];
        fibers.emplace_back(new Fiber);
        Fiber &fiber = *fibers.back();
        getcontext(&fiber.beginning);
        fiber.beginning.uc_stack.ss_sp = fiber.stack.get();
        fiber.beginning.uc_stack.ss_size = STACK_BYTES;
        const auto self = reinterpret_cast<uintptr_t>(this);  // makecontext passes ints
        makecontext(&fiber.beginning, reinterpret_cast<void (*)()>(live), 2, unsigned(self >> 32), unsigned(self));
        return fiber;
    }

    void resume(Fiber &fiber) {
        running = &fiber;
        if (_setjmp(scheduler)) return;
        if (fiber.begun) _longjmp(fiber.place, 1);
        fiber.begun = true;
        setcontext(&fiber.beginning);
    }

    void suspend() {
        waiting++;
        rest(*running);
        thread = running->thread;
    }

    void rest(Fiber &fiber) {
        if (!_setjmp(fiber.place)) _longjmp(scheduler, 1);
    }

    // The life of a fiber: it starts threads as long as there are any.
    static void live(unsigned high, unsigned low) {
        Core &core = *reinterpret_cast<Core *>(uintptr_t(high) << 32 | low);
        Fiber &fiber = *core.running;
        for (;;) {
            while (core.started < count(core.size)) {
                core.thread = fiber.thread = place(core.started++, core.size);
                core.kernel(core.arguments, &core);
            }
            core.rest(fiber);
        }
    }
};

}  // namespace

// Runs a kernel over a grid. 0, or 1 where threads disagree about a barrier.
extern "C" __attribute__((visibility("default")))
int launch(Kernel kernel, void **arguments, const unsigned int *blocks, const unsigned int *threads) {
    const Index grid{blocks[0], blocks[1], blocks[2]}, block{threads[0], threads[1], threads[2]};
    const size_t all = count(grid);
    std::atomic<size_t> next{0};
    std::atomic<bool> failed{false};
    const auto work = [&] {
        Core core(kernel, arguments, block);
        for (size_t i = next++; i < all && !failed; i = next++)
            if (!core.run(place(i, grid))) failed = true;
    };
    const size_t cores = std::min<size_t>({std::thread::hardware_concurrency(), all,
                                           all * count(block) / WORTH_A_CORE});
    std::vector<std::thread> others;
    for (size_t i = 1; i < cores; i++) others.emplace_back(work);
    work();
    for (std::thread &other : others) other.join();
    return failed;
}
