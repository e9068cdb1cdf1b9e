// A process group whose collectives take as long as a link of some bandwidth and latency would. Gloo moves the bytes.
// Collectives are on the link one after the other, in the order in which they start.
//
// In real time, the thread of the group sleeps until the link would be done. On paper nothing sleeps: the clock is the
// processor time of the thread that computes, and who waits puts it forward to the time at which the link would be done.
// So other processes of the machine do not count. Ranks are taken to be equally fast then.
#include <torch/extension.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <time.h>

using namespace c10d;
using Clock = std::chrono::steady_clock;
using Tensors = std::vector<at::Tensor>;

struct PaperClock {
  double ahead = 0;  // of the processor's time
  double linkIsFree = 0;

  double now() const {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return ahead + static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  }

  double start(double takes) {
    linkIsFree = std::max(linkIsFree, now()) + takes;
    return linkIsFree;
  }

  void waitUntil(double time) { ahead += std::max(0.0, time - now()); }
};

class SlowWork : public Work {
 public:
  SlowWork(OpType type, Tensors results, std::shared_ptr<PaperClock> clock, double end)
      : Work(-1, type), results_(std::move(results)), clock_(std::move(clock)), end_(end),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }
  std::vector<at::Tensor> result() override { return results_; }

  bool wait(std::chrono::milliseconds timeout) override {
    bool found = Work::wait(timeout);
    if (clock_) clock_->waitUntil(end_);
    return found;
  }

  void end(std::exception_ptr error) {
    if (error) {
      future_->setError(error);
    } else {
      future_->markCompleted(c10::IValue(results_));
    }
    finish(error);
    results_.clear();
  }

 private:
  Tensors results_;
  std::shared_ptr<PaperClock> clock_;
  double end_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class SlowLink : public Backend {
 public:
  SlowLink(c10::intrusive_ptr<Backend> inner, bool isOnPaper)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)),
        clock_(isOnPaper ? std::make_shared<PaperClock>() : nullptr), thread_([this] { work(); }) {}

  ~SlowLink() override {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      isOver_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  const std::string getBackendName() const override { return "slow"; }

  // What the link is like from now on.
  void set(double bytes_per_second, double latency) {
    std::lock_guard<std::mutex> lock(mutex_);
    rate_ = bytes_per_second;
    latency_ = latency;
  }

  // Seconds, of the thread that asks.
  double now() const {
    return clock_ ? clock_->now() : std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  }

  // Wait, on paper, for all that was started: what waits for futures is not seen to.
  void settle() {
    if (clock_) clock_->waitUntil(clock_->linkIsFree);
  }

  // Since this was asked last: seconds in which the link was busy, bytes, and collectives.
  std::tuple<double, double, int64_t> used() {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = std::make_tuple(busy_, bytes_, count_);
    busy_ = bytes_ = 0;
    count_ = 0;
    return found;
  }

  c10::intrusive_ptr<Work> allreduce(Tensors& tensors, const AllreduceOptions& options) override {
    auto held = tensors;
    return start(OpType::ALLREDUCE, tensors, 2 * part(bytes(tensors)),
                 [=, this]() mutable { return inner_->allreduce(held, options); });
  }

  c10::intrusive_ptr<Work> broadcast(Tensors& tensors, const BroadcastOptions& options) override {
    auto held = tensors;
    return start(OpType::BROADCAST, tensors, bytes(tensors),
                 [=, this]() mutable { return inner_->broadcast(held, options); });
  }

  c10::intrusive_ptr<Work> allgather(std::vector<Tensors>& outs, Tensors& parts, const AllgatherOptions& options) override {
    auto held = outs;
    auto given = parts;
    return start(OpType::ALLGATHER, outs[0], part(bytes(outs[0])),
                 [=, this]() mutable { return inner_->allgather(held, given, options); });
  }

  c10::intrusive_ptr<Work> _allgather_base(at::Tensor& out, at::Tensor& in, const AllgatherOptions& options) override {
    auto held = out;
    auto given = in;
    return start(OpType::_ALLGATHER_BASE, {out}, part(bytes({out})),
                 [=, this]() mutable { return inner_->_allgather_base(held, given, options); });
  }

  c10::intrusive_ptr<Work> _reduce_scatter_base(at::Tensor& out, at::Tensor& in, const ReduceScatterOptions& options) override {
    auto held = out;
    auto given = in;
    return start(OpType::_REDUCE_SCATTER_BASE, {out}, part(bytes({in})),
                 [=, this]() mutable { return inner_->_reduce_scatter_base(held, given, options); });
  }

  c10::intrusive_ptr<Work> alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& to, std::vector<int64_t>& of,
                                         const AllToAllOptions& options) override {
    auto held = out;
    auto given = in;
    auto outs = to;
    auto ins = of;
    return start(OpType::ALLTOALL_BASE, {out}, part(bytes({in})),
                 [=, this]() mutable { return inner_->alltoall_base(held, given, outs, ins, options); });
  }

  c10::intrusive_ptr<Work> barrier(const BarrierOptions& options) override {
    return start(OpType::BARRIER, {}, 0, [=, this] { return inner_->barrier(options); });
  }

 private:
  struct Task {
    c10::intrusive_ptr<SlowWork> work;
    double takes;
    std::function<c10::intrusive_ptr<Work>()> run;
  };

  static double bytes(const Tensors& tensors) {
    double sum = 0;
    for (const auto& tensor : tensors) sum += static_cast<double>(tensor.nbytes());
    return sum;
  }

  double part(double whole) const { return whole * (size_ - 1) / size_; }

  c10::intrusive_ptr<Work> start(OpType type, Tensors results, double bytes, std::function<c10::intrusive_ptr<Work>()> run) {
    c10::intrusive_ptr<SlowWork> made;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      double takes = rate_ > 0 ? latency_ + bytes / rate_ : 0;
      double end = clock_ ? clock_->start(takes) : 0;
      made = c10::make_intrusive<SlowWork>(type, std::move(results), clock_, end);
      tasks_.push_back({made, takes, std::move(run)});
      busy_ += takes;
      bytes_ += bytes;
      count_ += 1;
    }
    changed_.notify_all();
    return made;
  }

  void work() {
    while (true) {
      Task task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return isOver_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      auto begin = Clock::now();
      std::exception_ptr error;
      try {
        auto inner = task.run();
        if (inner) inner->wait();
      } catch (...) {
        error = std::current_exception();
      }
      auto takes = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(task.takes));
      if (!clock_) std::this_thread::sleep_until(begin + takes);
      task.run = nullptr;
      task.work->end(error);
    }
  }

  c10::intrusive_ptr<Backend> inner_;
  std::shared_ptr<PaperClock> clock_;
  double rate_ = 0, latency_ = 0, busy_ = 0, bytes_ = 0;
  int64_t count_ = 0;
  bool isOver_ = false;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  std::thread thread_;
};

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  py::class_<SlowLink, c10::intrusive_ptr<SlowLink>, Backend>(m, "SlowLink")
      .def(py::init<c10::intrusive_ptr<Backend>, bool>())
      .def("set", &SlowLink::set)
      .def("now", &SlowLink::now)
      .def("settle", &SlowLink::settle)
      .def("used", &SlowLink::used);
}
