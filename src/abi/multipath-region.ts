// How metadata of an agent names a region that its peers reach over the transport.
import { defineLayout } from './layout.ts';

export const multipathRegionInfo = defineLayout('MultipathRegionInfo', { region: 'u32', key: 'u32' }, 4);
