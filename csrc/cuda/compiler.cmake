# Finds nvcc and turns CUDA on; sets CORE_CUDA_FOUND. CORE_CUDA=ON makes a missing nvcc an error.
#
# Machine code for the A100, H100, B200 and RTX 50 families. The PTX is of the oldest, so that the driver can compile
# it for every card that has no machine code here, later ones included.
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES "80;90a-real;100-real;120-real")
endif()

include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  set(CORE_CUDA_FOUND ON)
elseif(CORE_CUDA STREQUAL "ON")
  message(FATAL_ERROR "CORE_CUDA=ON needs nvcc: put it on PATH, set CUDACXX, or build with CORE_CUDA=OFF")
else()
  message(STATUS "No nvcc: core_cuda is left out")
endif()
