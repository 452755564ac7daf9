// Page-aligned memory in huge pages where the system has them. Knows nothing of what is kept in it.
#pragma once
#include <cstddef>
#include <cstdint>

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

}  // namespace ridgeline
