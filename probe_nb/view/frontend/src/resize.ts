/** Columns made wider and narrower at their right edge. */

/** Let `edge` be dragged; `place` tells left and right now, a double click gives the width back. */
export function dragged(
  edge: HTMLElement,
  place: () => readonly [left: number, right: number],
  change: (width: number | null) => void,
): void {
  let begin = 0;
  let width = 0;
  const move = (event: PointerEvent): void => change(width + event.clientX - begin);
  edge.addEventListener("pointerdown", (event) => {
    const [left, right] = place();
    [begin, width] = [event.clientX, right - left];
    event.preventDefault();
    event.stopPropagation();
    edge.setPointerCapture(event.pointerId);
    edge.addEventListener("pointermove", move);
  });
  const end = (): void => edge.removeEventListener("pointermove", move);
  edge.addEventListener("pointerup", end);
  edge.addEventListener("pointercancel", end);
  edge.addEventListener("dblclick", () => change(null));
  edge.addEventListener("click", (event) => event.stopPropagation());
}
