// The device API for kernels of users: put, signal, putWithSignal, wait, readSignal, putWord, waitWord, flush,
// and their post... names.
//
// docs/device-api.md is its guide. Everything is in namespace weftline.
#pragma once
#include "weftline/post.cuh"
#include "weftline/put.cuh"
#include "weftline/signal.cuh"
#include "weftline/word.cuh"
