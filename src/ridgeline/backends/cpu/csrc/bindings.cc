// The Python module `_native`: thin wrappers that check shapes, borrow arrays and release the interpreter lock.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "ops/probe.h"
#include "ops/sample.h"
#include "program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ridgeline {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;
using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Words = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void pack_weight(Program& p, int weight, int64_t first, Bytes data) {
  if (data.shape(1) > 1 && data.stride(1) != 1)
    throw std::invalid_argument("a weight's bytes must be [rows, row_bytes] with contiguous rows");
  const int64_t count = static_cast<int64_t>(data.shape(0));
  const uint8_t* bytes = data.data();
  const int64_t stride = data.stride(0);
  nb::gil_scoped_release release;
  p.pack_weight(weight, first, count, bytes, stride);
}

// Python's Step as a StepView; `keep` owns the arrays that the view borrows.
StepView view_of(nb::handle step, std::vector<nb::object>& keep) {
  StepView view;
  for (nb::handle span : nb::borrow<nb::tuple>(step.attr("spans"))) {
    view.spans.push_back({nb::cast<int64_t>(span.attr("past")), nb::cast<int64_t>(span.attr("new")), nb::cast<int64_t>(span.attr("want"))});
  }
  const auto ids = [&keep](nb::handle array) {
    keep.push_back(nb::borrow(array));
    return nb::cast<Ids>(array, false);  // never a converted copy: its memory would not outlive this line
  };
  const Ids tokens = ids(step.attr("tokens"));
  view.tokens = tokens.data();
  view.rows = static_cast<int64_t>(tokens.shape(0));
  for (nb::handle group : nb::borrow<nb::tuple>(step.attr("tables"))) {
    std::vector<TableView>& tables = view.tables.emplace_back();
    for (nb::handle table : nb::borrow<nb::tuple>(group)) {
      const Ids blocks = ids(table);
      tables.push_back({blocks.data(), static_cast<int64_t>(blocks.shape(0))});
    }
  }
  for (nb::handle copy : nb::borrow<nb::tuple>(step.attr("copies"))) {
    view.copies.push_back(
        {nb::cast<int64_t>(copy.attr("group")), nb::cast<int64_t>(copy.attr("src")), nb::cast<int64_t>(copy.attr("dst"))});
  }
  for (nb::handle walk : nb::borrow<nb::tuple>(step.attr("shared"))) {
    SharedView& shared = view.shared.emplace_back();
    for (nb::handle span : nb::borrow<nb::tuple>(walk.attr("spans"))) shared.spans.push_back(nb::cast<int32_t>(span));
    shared.tokens = nb::cast<int64_t>(walk.attr("tokens"));
  }
  return view;
}

void forward(Program& p, nb::handle step) {
  std::vector<nb::object> keep;
  const StepView view = view_of(step, keep);
  nb::gil_scoped_release release;
  p.forward(view);
}

// Rows of a buffer, [rows, columns]; the view keeps its memory alive, its numbers are those of the last forward.
nb::object rows(Program& p, int buffer, int64_t columns) {
  auto* owner = new std::shared_ptr<void>(p.buffer_owner(buffer));
  nb::capsule capsule(owner, [](void* pointer) noexcept { delete static_cast<std::shared_ptr<void>*>(pointer); });
  const size_t shape[2] = {static_cast<size_t>(p.buffer_rows(buffer)), static_cast<size_t>(columns)};
  const int64_t strides[2] = {p.buffer_width(buffer), 1};
  return nb::cast(nb::ndarray<nb::numpy, float, nb::ndim<2>>(p.buffer(buffer), 2, shape, capsule, strides));
}

template <typename Array>
Array optional_array(nb::handle object, std::vector<nb::object>& keep) {
  if (object.is_none()) return Array();
  keep.push_back(nb::borrow(object));
  return nb::cast<Array>(object, false);
}

uint64_t low_bits(nb::handle number) { return PyLong_AsUnsignedLongLongMask(number.ptr()); }

SampleRequest request_of(nb::handle row, std::vector<nb::object>& keep) {
  SampleRequest r;
  const auto real = [&row](const char* name) { return nb::cast<double>(row.attr(name)); };
  r.row = nb::cast<int64_t>(row.attr("row"));
  r.temperature = real("temperature");
  r.top_k = nb::cast<int64_t>(row.attr("top_k"));
  r.top_p = real("top_p");
  r.min_p = real("min_p");
  r.repetition_penalty = real("repetition_penalty");
  r.presence_penalty = real("presence_penalty");
  r.frequency_penalty = real("frequency_penalty");
  r.seed = low_bits(row.attr("seed"));
  r.choice = low_bits(row.attr("choice"));
  r.position = low_bits(row.attr("position"));
  const auto take = [&](const char* name, auto& data, int64_t& count, auto array) {
    array = optional_array<decltype(array)>(row.attr(name), keep);
    if (!array.is_valid()) return;
    data = array.data();
    count = static_cast<int64_t>(array.shape(0));
  };
  int64_t values = 0;
  take("prompt_ids", r.prompt_ids, r.prompt_count, Ids());
  take("output_ids", r.output_ids, r.output_count, Ids());
  take("bias_ids", r.bias_ids, r.bias_count, Ids());
  take("bias_values", r.bias_values, values, Floats());
  take("allowed", r.allowed, r.allowed_words, Words());
  if (values != r.bias_count) throw std::invalid_argument("bias_ids and bias_values differ in length");
  r.logprobs = row.attr("logprobs").is_none() ? -1 : nb::cast<int32_t>(row.attr("logprobs"));
  if (!row.attr("given").is_none()) {
    const int64_t given = nb::cast<int64_t>(row.attr("given"));
    r.given = given < 0 ? std::numeric_limits<int64_t>::max() : given;
  }
  return r;
}

template <typename T>
nb::object array_of(const T* values, size_t count) {
  T* copy = new T[count > 0 ? count : 1];
  std::copy(values, values + count, copy);
  nb::capsule owner(copy, [](void* pointer) noexcept { delete[] static_cast<T*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(copy, {count}, owner));
}

// (tokens, failed, logprobs, [(ids, values) | None]) of a SamplePlan, from the rows of a buffer of which `columns` are logits.
nb::tuple draw(Program& p, int buffer, int64_t columns, nb::handle plan) {
  std::vector<nb::object> keep;
  std::vector<SampleRequest> requests;
  for (nb::handle row : nb::borrow<nb::tuple>(plan.attr("rows"))) requests.push_back(request_of(row, keep));
  const int64_t vocab = std::min(nb::cast<int64_t>(plan.attr("vocab")), columns), n = static_cast<int64_t>(requests.size());
  if (vocab < 1 || vocab > kMaxSampleVocab)
    throw std::invalid_argument("the vocabulary of a sample plan must be 1.." + std::to_string(kMaxSampleVocab));
  std::vector<SampleResult> results(requests.size());
  std::vector<std::vector<int32_t>> ids(requests.size());
  std::vector<std::vector<float>> values(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const size_t count = static_cast<size_t>(std::clamp<int64_t>(requests[i].logprobs, 0, vocab));
    ids[i].resize(count);
    values[i].resize(count);
    results[i].top_ids = ids[i].data();
    results[i].top_values = values[i].data();
  }
  {
    nb::gil_scoped_release release;
    sample(p.pool(), p.buffer(buffer), p.buffer_rows(buffer), p.buffer_width(buffer), vocab, requests.data(), n, results.data());
  }
  std::vector<int32_t> tokens;
  std::vector<uint8_t> failed;
  std::vector<float> logprobs;
  nb::list top;
  for (size_t i = 0; i < results.size(); ++i) {
    tokens.push_back(results[i].token);
    failed.push_back(results[i].failed);
    logprobs.push_back(results[i].logprob);
    if (requests[i].logprobs < 0) {
      top.append(nb::none());
    } else {
      const size_t count = static_cast<size_t>(results[i].top_count);
      top.append(nb::make_tuple(array_of(ids[i].data(), count), array_of(values[i].data(), count)));
    }
  }
  return nb::make_tuple(array_of(tokens.data(), tokens.size()), array_of(failed.data(), failed.size()),
                        array_of(logprobs.data(), logprobs.size()), top);
}

nb::tuple stats_of(const Program& p, int64_t i) {
  const InstructionStats s = p.stats(i);
  return nb::make_tuple(p.instruction_label(i), p.instruction_ops(i), s.calls, s.nanoseconds, s.bytes, s.flops);
}

void bind_program(nb::module_& m) {
  nb::class_<Program>(m, "Program")
      .def(
          "__init__",
          [](Program* self, int isa, int threads, int64_t block_size, int k_dtype, int v_dtype, uint32_t faults) {
            ProgramOptions options;
            options.isa = static_cast<Isa>(isa);
            options.threads = threads;
            options.block_size = block_size;
            options.k_dtype = static_cast<KvDtype>(k_dtype);
            options.v_dtype = static_cast<KvDtype>(v_dtype);
            options.faults = faults;
            new (self) Program(options);
          },
          "isa"_a, "threads"_a, "block_size"_a, "k_dtype"_a, "v_dtype"_a, "faults"_a)
      .def("add_weight", [](Program& p, int encoding, int64_t rows,
                            int64_t columns) { return p.add_weight(static_cast<Encoding>(encoding), rows, columns); })
      .def("pack_weight", &pack_weight)
      .def("share_weight", &Program::share_weight)
      .def("add_vector", [](Program& p, Floats v) { return p.add_vector(std::vector<float>(v.data(), v.data() + v.shape(0))); })
      .def("add_rope_table", &Program::add_rope_table)
      .def("add_cache", &Program::add_cache)
      .def("add_buffer", &Program::add_buffer)
      .def("add_embed", &Program::add_embed)
      .def("add_norm", &Program::add_norm)
      .def("add_add_norm", &Program::add_add_norm)
      .def("add_linear", &Program::add_linear)
      .def("add_rope", &Program::add_rope)
      .def("add_cache_write", &Program::add_cache_write)
      .def("add_attend", &Program::add_attend)
      .def("add_add", &Program::add_add)
      .def("add_mul", &Program::add_mul)
      .def("add_scale", &Program::add_scale)
      .def("add_softcap", &Program::add_softcap)
      .def("add_activation",
           [](Program& p, int out, int x, int64_t width, int kind) { p.add_activation(out, x, width, static_cast<ActivationKind>(kind)); })
      .def("add_gated", [](Program& p, int out, int gate, int up, int64_t width,
                           int kind) { p.add_gated(out, gate, up, width, static_cast<ActivationKind>(kind)); })
      .def("add_select", &Program::add_select)
      .def("finish", &Program::finish)
      .def("forward", &forward)
      .def("rows", &rows)
      .def("sample", &draw)
      .def("set_timing", &Program::set_timing)
      .def("instructions", &Program::instructions)
      .def("stats", &stats_of)
      .def("reset_stats", &Program::reset_stats)
      .def("weight_kernel", &Program::weight_kernel)
      .def("kernel_names", &Program::kernel_names)
      .def("weight_bytes", &Program::weight_bytes)
      .def("kv_bytes", &Program::kv_bytes)
      .def("arena_bytes", &Program::arena_bytes)
      .def("fill_kv", &Program::fill_kv)
      .def("fill_block", &Program::fill_block)
      .def("block_holds_only", &Program::block_holds_only)
      .def("weights_checksum", &Program::weights_checksum);
}

// (read GB/s, GB/s from the cache, int8 GOPS, float32 GFLOP/s, GFLOP/s in bfloat16 pairs) at most, in about `seconds`.
nb::tuple ceilings_of(int isa, int threads, double seconds, int64_t max_bytes) {
  if (isa < 0 || isa > static_cast<int>(best_isa()) || threads < 1) throw std::invalid_argument("cannot probe that");
  Ceilings c;
  {
    nb::gil_scoped_release release;
    ThreadPool pool(threads);
    c = probe(pool, static_cast<Isa>(isa), seconds, max_bytes);
  }
  return nb::make_tuple(c.read_gb_s, c.cache_gb_s, c.int8_gops, c.f32_gflops, c.bf16_gflops);
}

}  // namespace

NB_MODULE(_native, m) {
  m.doc() = "Ridgeline's native CPU kernels and programs.";
  m.def("best_isa", [] { return static_cast<int>(best_isa()); });
  m.def("packed_bytes",
        [](int encoding, int64_t rows, int64_t columns) { return packed_bytes(static_cast<Encoding>(encoding), rows, columns); });
  m.def("probe", &ceilings_of, "isa"_a, "threads"_a, "seconds"_a, "max_bytes"_a);
  bind_program(m);
}

}  // namespace ridgeline
