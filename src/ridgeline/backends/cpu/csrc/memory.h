// Page-aligned memory in huge pages where the system has them. Knows nothing of what is kept in it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace ridgeline {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Zero-filled; throws std::bad_alloc. sparse: small pages, for memory of which only scattered pieces may ever be touched.
  explicit HugeBuffer(size_t bytes, bool sparse = false);
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  uint8_t* data() const { return data_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;  // what was asked for
  uint8_t* base_ = nullptr;
  size_t mapped_ = 0;
};

// A part of a larger buffer, which it keeps alive.
class MemoryPiece {
 public:
  MemoryPiece() = default;
  MemoryPiece(std::shared_ptr<uint8_t> data, size_t bytes) : data_(std::move(data)), bytes_(bytes) {}

  uint8_t* data() const { return data_.get(); }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_.get());
  }
  size_t bytes() const { return bytes_; }
  const std::shared_ptr<uint8_t>& owner() const { return data_; }

 private:
  std::shared_ptr<uint8_t> data_;
  size_t bytes_ = 0;
};

// Pieces side by side in buffers of at least `chunk` bytes: what is too small for a huge page of its own lies in one with others.
// In small pages a walk over the weights of a small model spent half of its time on page tables.
class PieceStore {
 public:
  explicit PieceStore(size_t chunk) : chunk_(chunk) {}
  MemoryPiece take(size_t bytes);  // zero-filled, aligned to 64 bytes; throws std::bad_alloc
  static size_t room(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }  // that a piece takes

 private:
  static constexpr size_t kAlign = 64;
  size_t chunk_, used_ = 0;
  std::shared_ptr<HugeBuffer> buffer_;
};

}  // namespace ridgeline
