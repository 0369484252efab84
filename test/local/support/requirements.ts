// Why a test cannot run here, for its option `skip`; an error where WEFTLINE_TEST_REQUIRE says that it must.

/** What some tests need and a machine may lack. */
export type Requirement =
  | 'local'
  | 'ucx'
  | 'multipath'
  | 'ucx-utils'
  | 'namespaces'
  | 'ipv6'
  | 'kernel-compiler'
  | 'etcd';

const required = (process.env['WEFTLINE_TEST_REQUIRE'] ?? '').split(',').filter((word) => word !== '');

/** `why`: undefined if the test can run. Throws where the requirement is listed in WEFTLINE_TEST_REQUIRE, so that no test vanishes there. */
export function skipWithout(requirement: Requirement, why: string | undefined): string | false {
  if (why === undefined) return false;
  if (required.includes(requirement)) {
    throw new Error(`WEFTLINE_TEST_REQUIRE demands ${requirement}, but its tests cannot run here: ${why}`);
  }
  return why;
}
