#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace ridgeline {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSmall = size_t{256} << 10;  // below this a huge page would waste more than it saves
constexpr size_t kPage = 4096;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

HugeBuffer::HugeBuffer(size_t bytes, bool sparse) : bytes_(bytes) {
  if (bytes == 0) return;
#if defined(__linux__)
  // Large buffers start on a huge page; the tail past the last full huge page stays in small ones, so that nothing is wasted.
  const size_t lead = bytes >= kSmall && !sparse ? kHugePage : 0;
  mapped_ = round_up(bytes, kPage) + lead;
  void* address = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (address == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<uint8_t*>(address);
  data_ = lead == 0 ? base_ : reinterpret_cast<uint8_t*>(round_up(reinterpret_cast<uintptr_t>(base_), kHugePage));
  const size_t whole = bytes / kHugePage * kHugePage;
  if (whole > 0 && !sparse) madvise(data_, whole, MADV_HUGEPAGE);
#else
  (void)sparse;
  mapped_ = round_up(bytes, kPage);
  base_ = data_ = static_cast<uint8_t*>(std::aligned_alloc(kPage, mapped_));
  if (data_ == nullptr) throw std::bad_alloc();
  std::memset(data_, 0, mapped_);
#endif
}

HugeBuffer::~HugeBuffer() {
  if (base_ == nullptr) return;
#if defined(__linux__)
  munmap(base_, mapped_);
#else
  std::free(base_);
#endif
}

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept { *this = std::move(other); }

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(base_, other.base_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

MemoryPiece PieceStore::take(size_t bytes) {
  if (bytes == 0) return {};
  const size_t needed = room(bytes);
  if (buffer_ == nullptr || buffer_->bytes() - used_ < needed) {
    buffer_ = std::make_shared<HugeBuffer>(std::max(chunk_, needed));
    used_ = 0;
  }
  uint8_t* const at = buffer_->data() + std::exchange(used_, used_ + needed);
  return {std::shared_ptr<uint8_t>(buffer_, at), bytes};
}

}  // namespace ridgeline
