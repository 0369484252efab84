// weftline/ep: expert-parallel dispatch and combine.
export { Tensor } from '../device/tensor.ts';
