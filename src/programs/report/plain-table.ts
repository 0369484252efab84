// How tables look: no colours, no lines between rows.
export const plainTable = {
  chars: { mid: '', 'left-mid': '', 'mid-mid': '', 'right-mid': '' },
  style: { head: [], border: [] },
};
